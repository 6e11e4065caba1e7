"""Deadlines with the same delay share one timer of the event loop."""

from __future__ import annotations

import asyncio

from aiozkqueue.runtime.clock import EqualDeadlines
from aiozkqueue.testing import run_virtual


def test_each_entry_expires_at_its_time_unless_it_is_removed() -> None:
    async def main() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        expired: list[tuple[str, float]] = []
        begun = loop.time()
        deadlines: EqualDeadlines[str] = EqualDeadlines(
            loop, 10, lambda entry: expired.append((entry, round(loop.time() - begun, 3)))
        )
        deadlines.add("first")
        await asyncio.sleep(3)
        deadlines.add("removed")
        deadlines.add("second")
        await asyncio.sleep(4)
        deadlines.remove("removed")
        await asyncio.sleep(20)
        deadlines.add("after a pause")
        await asyncio.sleep(20)
        return expired

    assert run_virtual(main) == [("first", 10), ("second", 13), ("after a pause", 37)]


def test_one_timer_serves_all_entries() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        deadlines: EqualDeadlines[int] = EqualDeadlines(loop, 10, lambda _: None)
        timers = 0
        call_later = loop.call_later

        def counted(*args: object, **options: object) -> asyncio.TimerHandle:
            nonlocal timers
            timers += 1
            return call_later(*args, **options)  # type: ignore[arg-type]

        loop.call_later = counted  # type: ignore[method-assign]
        for number in range(1000):
            deadlines.add(number)
            deadlines.remove(number)
        return timers

    assert run_virtual(main) == 1
