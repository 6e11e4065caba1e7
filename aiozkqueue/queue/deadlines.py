"""Deadlines of many, by one timer: those who are answered in time cost the event loop no timer each."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from .clock import Clock, Timer

#: Entries kept, besides those still waited for, until they are looked through.
SLACK = 64


class Expiring(Protocol):
    """What can come to its end before its deadline."""

    @property
    def over(self) -> bool:
        """Whether it has."""
        ...


E = TypeVar("E", bound=Expiring)


class Deadlines(Generic[E]):
    """Calls ``expire`` with each entry that is not over at its deadline."""

    def __init__(self, clock: Clock, expire: Callable[[E], None]) -> None:
        self._clock = clock
        self._expire = expire
        self._entries: list[tuple[float, int, E]] = []  # a heap
        self._count = 0
        self._most = SLACK
        self._timer: Timer | None = None
        self._due = 0.0

    def add(self, entry: E, seconds: float) -> None:
        """Set a deadline so many seconds from now."""
        due = self._clock.monotonic() + seconds
        self._count += 1
        heapq.heappush(self._entries, (due, self._count, entry))
        if len(self._entries) > self._most:
            self._entries = [one for one in self._entries if not one[2].over]
            heapq.heapify(self._entries)
            self._most = 2 * len(self._entries) + SLACK
        if self._timer is None or due < self._due:
            self._arm(due, seconds)

    def __len__(self) -> int:
        """How many entries are kept."""
        return len(self._entries)

    def close(self) -> None:
        """Forget all."""
        self._entries.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, due: float, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._clock.call_later(seconds, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        entries = self._entries
        while entries and (entries[0][2].over or entries[0][0] <= now):
            entry = heapq.heappop(entries)[2]
            if not entry.over:
                self._expire(entry)
        if entries and self._timer is None:
            self._arm(entries[0][0], entries[0][0] - now)
