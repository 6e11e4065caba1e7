"""Deadlines of many, by one timer: those who are answered in time cost the event loop no timer each."""

from __future__ import annotations

from bisect import insort
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from .clock import Clock, Timer

#: Entries kept, besides those still waited for, until they are looked through.
SLACK = 64


class Expiring(Protocol):
    """What can come to its end before its deadline."""

    @property
    def due(self) -> float:
        """Its deadline, on the clock of `Clock.monotonic`."""
        ...

    @property
    def over(self) -> bool:
        """Whether it has."""
        ...


E = TypeVar("E", bound=Expiring)


_due_of = attrgetter("due")


class Deadlines(Generic[E]):
    """Calls ``expire`` with each entry that is not over at its deadline."""

    def __init__(self, clock: Clock, expire: Callable[[E], None]) -> None:
        self._clock = clock
        self._expire = expire
        self._entries: list[E] = []  # the first to expire first
        self._most = SLACK
        self._timer: Timer | None = None
        self._due = 0.0

    def add(self, entry: E) -> None:
        """Take one that is to expire."""
        due = entry.due
        entries = self._entries
        if not entries or due >= entries[-1].due:  # as nearly always: who comes later waits as long as those before
            entries.append(entry)
        else:
            insort(entries, entry, key=_due_of)
        if len(entries) > self._most:
            self._entries = entries = [one for one in entries if not one.over]
            self._most = 2 * len(entries) + SLACK
        if self._timer is None or due < self._due:
            self._arm(due, self._clock.monotonic())

    def __len__(self) -> int:
        """How many entries are kept."""
        return len(self._entries)

    def close(self) -> None:
        """Forget all."""
        self._entries.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, due: float, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._clock.call_later(due - now, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        entries = self._entries
        gone = 0
        while gone < len(entries) and (entries[gone].over or entries[gone].due <= now):
            gone += 1
        due, self._entries = entries[:gone], entries[gone:]
        for entry in due:
            if not entry.over:
                self._expire(entry)
        if self._entries and self._timer is None:
            self._arm(self._entries[0].due, now)
