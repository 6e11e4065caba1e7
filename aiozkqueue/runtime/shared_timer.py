"""One event-loop timer for many deadlines. An entry that finishes in time needs no separate timer."""

from __future__ import annotations

import math
from bisect import insort
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Hashable, Iterable

    from .clock import Clock, Timer

#: Entries that may accumulate, in addition to those still waiting, before finished ones are removed.
SLACK = 64


class Expiring(Protocol):
    """An entry that may finish before its deadline."""

    @property
    def due(self) -> float:
        """The deadline, on the clock of `Clock.monotonic`."""
        ...

    @property
    def over(self) -> bool:
        """Whether the entry has finished."""
        ...


E = TypeVar("E", bound=Expiring)


_due_of = attrgetter("due")


class SharedTimer(Generic[E]):
    """Calls ``expire`` with each entry that has not finished at its deadline.

    When the timer fires, ``newcomers`` returns the entries added since the previous call. Most of them have finished
    by then: an entry that finishes in time costs only a comparison with `due`.
    """

    def __init__(self, clock: Clock, expire: Callable[[E], None], newcomers: Callable[[], Iterable[E]]) -> None:
        self._clock = clock
        self._expire = expire
        self._newcomers = newcomers
        self._entries: list[E] = []  # those unfinished when the timer last fired, by deadline
        self._look_limit = SLACK
        self._timer: Timer | None = None
        self.due: float = math.inf
        """When the timer fires. A new entry with an earlier deadline must call `ring_by`."""

    def ring_by(self, due: float) -> None:
        """Move the timer to a deadline earlier than all others."""
        if self._timer is not None:
            self._timer.cancel()
        self.due = due
        self._timer = self._clock.call_later(due - self._clock.monotonic(), self._on_timer)

    def __len__(self) -> int:
        """Return the number of entries kept."""
        return len(self._entries)

    def close(self) -> None:
        """Discard all entries."""
        self._entries.clear()
        self._stop()

    def _stop(self) -> None:
        self.due = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._stop()
        now = self._clock.monotonic()
        for entry in self._newcomers():
            self._add(entry)
        entries = self._entries
        count = 0
        while count < len(entries) and (entries[count].over or entries[count].due <= now):
            count += 1
        due, self._entries = entries[:count], entries[count:]
        for entry in due:
            if not entry.over:
                self._expire(entry)
        if self._entries and self._entries[0].due < self.due:
            self.ring_by(self._entries[0].due)

    def _add(self, entry: E) -> None:
        entries = self._entries
        if not entries or entry.due >= entries[-1].due:  # the usual case: later entries wait equally long
            entries.append(entry)
        else:
            insort(entries, entry, key=_due_of)
        if len(entries) > self._look_limit:
            self._entries = [entry for entry in entries if not entry.over]
            self._look_limit = 2 * len(self._entries) + SLACK


K = TypeVar("K", bound="Hashable")


class EqualDeadlines(Generic[K]):
    """Calls ``expire`` with each entry that has not been removed ``seconds`` after it was added.

    All entries wait equally long, so they expire in the order in which they were added, and an entry that is removed
    in time costs two changes of a dictionary.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, expire: Callable[[K], object]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._expire = expire
        self._entries: dict[K, float] = {}
        self._ringing = False

    def add(self, entry: K) -> None:
        """Add an entry."""
        self._entries[entry] = self._loop.time() + self._seconds
        if not self._ringing:
            self._ring_in(self._seconds)

    def remove(self, entry: K) -> None:
        """Remove an entry, if it has not expired."""
        self._entries.pop(entry, None)

    def _ring_in(self, seconds: float) -> None:
        self._ringing = True
        self._loop.call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._ringing = False
        now = self._loop.time()
        while self._entries:
            entry, due = next(iter(self._entries.items()))
            if due > now:
                self._ring_in(due - now)
                return
            del self._entries[entry]
            self._expire(entry)
