"""One timer for many deadlines."""

from __future__ import annotations

import asyncio

import pytest

from aiozkqueue.queue.clock import Clock
from aiozkqueue.queue.deadlines import SLACK, Deadlines

pytestmark = pytest.mark.timeout(30)


class Entry:
    """Something with a deadline."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name = name
        self.due = Clock().monotonic() + seconds
        self.over = False


class Expired:
    """Names and moments of what has expired."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
        self._begun = asyncio.get_running_loop().time()

    def __call__(self, entry: Entry) -> None:
        self._queue.put_nowait((entry.name, asyncio.get_running_loop().time() - self._begun))

    async def next(self, count: int) -> list[tuple[str, float]]:
        return [await self._queue.get() for _ in range(count)]


async def test_entries_expire_in_the_order_of_their_deadlines_and_not_before() -> None:
    expired = Expired()
    deadlines = Deadlines[Entry](Clock(), expired)
    for name, seconds in (("late", 0.2), ("early", 0.05), ("middle", 0.1)):
        deadlines.add(Entry(name, seconds))
    told = await expired.next(3)
    assert [name for name, _ in told] == ["early", "middle", "late"]
    assert all(at >= due - 0.001 for (_, at), due in zip(told, (0.05, 0.1, 0.2), strict=True))


async def test_what_is_over_by_then_does_not_expire_and_what_comes_behind_it_does() -> None:
    expired = Expired()
    deadlines = Deadlines[Entry](Clock(), expired)
    first = Entry("first", 0.02)
    deadlines.add(first)
    deadlines.add(Entry("second", 0.05))
    first.over = True
    assert [name for name, _ in await expired.next(1)] == ["second"]


async def test_an_entry_added_while_others_expire_expires_too() -> None:
    expired = Expired()

    def expire(entry: Entry) -> None:
        expired(entry)
        if entry.name == "first":
            deadlines.add(Entry("added", 0.01))

    deadlines = Deadlines[Entry](Clock(), expire)
    deadlines.add(Entry("first", 0.01))
    deadlines.add(Entry("second", 1))
    assert [name for name, _ in await expired.next(3)] == ["first", "added", "second"]


async def test_what_is_answered_in_time_is_not_kept_until_its_deadline() -> None:
    deadlines = Deadlines[Entry](Clock(), Expired())
    waiting = [Entry("waits", 3600) for _ in range(10)]
    for entry in waiting:
        deadlines.add(entry)
    for _ in range(10_000):
        answered = Entry("answered", 3600)
        deadlines.add(answered)
        answered.over = True
    assert len(deadlines) <= 2 * len(waiting) + SLACK + 1
    deadlines.close()
    assert len(deadlines) == 0
