"""Deadlines of many, by one timer: those who are answered in time cost the event loop no timer each."""

from __future__ import annotations

import math
from bisect import insort
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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


class SharedTimer(Generic[E]):
    """Calls ``expire`` with each entry that is not over at its deadline.

    When the timer rings, ``newcomers`` is asked for those that have begun to wait since it was asked last. Most are
    over by then: one that is answered in time costs a comparison with `due`.
    """

    def __init__(self, clock: Clock, expire: Callable[[E], None], newcomers: Callable[[], Iterable[E]]) -> None:
        self._clock = clock
        self._expire = expire
        self._newcomers = newcomers
        self._entries: list[E] = []  # that waited when the timer rang; the first to expire first
        self._most = SLACK
        self._timer: Timer | None = None
        self.due: float = math.inf
        """When the timer rings: whoever begins to wait, and expires before that, must `ring_by`."""

    def ring_by(self, due: float) -> None:
        """Have the timer ring at a deadline that comes before all others."""
        if self._timer is not None:
            self._timer.cancel()
        self.due = due
        self._timer = self._clock.call_later(due - self._clock.monotonic(), self._wakeup_op)

    def __len__(self) -> int:
        """How many entries are kept."""
        return len(self._entries)

    def close(self) -> None:
        """Forget all."""
        self._entries.clear()
        self._stop()

    def _stop(self) -> None:
        self.due = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wakeup_op(self) -> None:
        self._stop()
        now = self._clock.monotonic()
        for entry in self._newcomers():
            self._keep(entry)
        entries = self._entries
        gone = 0
        while gone < len(entries) and (entries[gone].over or entries[gone].due <= now):
            gone += 1
        due, self._entries = entries[:gone], entries[gone:]
        for entry in due:
            if not entry.over:
                self._expire(entry)
        if self._entries and self._entries[0].due < self.due:
            self.ring_by(self._entries[0].due)

    def _keep(self, entry: E) -> None:
        entries = self._entries
        if not entries or entry.due >= entries[-1].due:  # as nearly always: who comes later waits as long
            entries.append(entry)
        else:
            insort(entries, entry, key=_due_of)
        if len(entries) > self._most:
            self._entries = [one for one in entries if not one.over]
            self._most = 2 * len(self._entries) + SLACK
