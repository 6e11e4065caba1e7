"""One timer that serves many deadlines."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.runtime.clock import SLACK, Clock, SharedTimer

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.timeout(30)


class Entry:
    """Something with a deadline."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name = name
        self.due = Clock().monotonic() + seconds
        self.over = False


class Waiting:
    """The new entries, as `SharedTimer` receives them."""

    def __init__(self, expire: Callable[[Entry], None]) -> None:
        self._come: list[Entry] = []
        self.deadlines = SharedTimer[Entry](Clock(), expire, self._newcomers)

    def add(self, entry: Entry) -> None:
        self._come.append(entry)
        if entry.due < self.deadlines.due:
            self.deadlines.fire_by(entry.due)

    def _newcomers(self) -> list[Entry]:
        come, self._come = self._come, []
        return [entry for entry in come if not entry.over]


class Expired:
    """The names of expired entries, and the times."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
        self._begun = asyncio.get_running_loop().time()

    def __call__(self, entry: Entry) -> None:
        self._queue.put_nowait((entry.name, asyncio.get_running_loop().time() - self._begun))

    async def next(self, count: int) -> list[tuple[str, float]]:
        return [await self._queue.get() for _ in range(count)]


async def test_entries_expire_in_the_order_of_their_deadlines_and_not_before() -> None:
    expired = Expired()
    waiting = Waiting(expired)
    for name, seconds in (("late", 0.2), ("early", 0.05), ("middle", 0.1)):
        waiting.add(Entry(name, seconds))
    names = await expired.next(3)
    assert [name for name, _ in names] == ["early", "middle", "late"]
    assert all(at >= due - 0.001 for (_, at), due in zip(names, (0.05, 0.1, 0.2), strict=True))


async def test_a_finished_entry_does_not_expire_and_the_next_one_does() -> None:
    expired = Expired()
    waiting = Waiting(expired)
    first = Entry("first", 0.02)
    waiting.add(first)
    waiting.add(Entry("second", 0.05))
    first.over = True
    assert [name for name, _ in await expired.next(1)] == ["second"]


async def test_an_entry_added_while_others_expire_expires_too() -> None:
    expired = Expired()

    def expire(entry: Entry) -> None:
        expired(entry)
        if entry.name == "first":
            waiting.add(Entry("added", 0.01))

    waiting = Waiting(expire)
    waiting.add(Entry("first", 0.01))
    waiting.add(Entry("second", 1))
    assert [name for name, _ in await expired.next(3)] == ["first", "added", "second"]


async def test_an_entry_answered_in_time_is_not_kept_until_its_deadline() -> None:
    expired = Expired()
    waiting = Waiting(expired)
    patient = [Entry("waits", 3600) for _ in range(10)]
    for entry in patient:
        waiting.add(entry)
    for _ in range(
        200
    ):  # the timer fires for each entry that expires, and reads the new entries that had not ended by then
        answered = [Entry("answered", 3600) for _ in range(10)]
        for entry in answered:
            waiting.add(entry)
        waiting.add(Entry("expires", 0.001))
        await expired.next(1)
        for entry in answered:
            entry.over = True
    assert len(waiting.deadlines) <= 2 * len(patient) + SLACK + 1
    waiting.deadlines.close()
    assert len(waiting.deadlines) == 0


async def test_an_earlier_deadline_moves_the_timer_forward() -> None:
    expired = Expired()
    waiting = Waiting(expired)
    waiting.add(Entry("late", 3600))
    waiting.add(Entry("early", 0.01))
    assert [name for name, _ in await expired.next(1)] == ["early"]
    assert waiting.deadlines.due > Clock().monotonic() + 3000
    waiting.add(Entry("next", 0.01))
    assert [name for name, _ in await expired.next(1)] == ["next"]
