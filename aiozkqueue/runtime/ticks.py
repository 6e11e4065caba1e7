"""Periodic checks, each of which plans the next, counts per tick, and pauses between tries that are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from random import Random

    from .clock import Clock, Timer

S = TypeVar("S", bound="Hashable")


class Ticks:
    """Periodic checks, by calls of a function; a timer triggers each."""

    __slots__ = ("_check", "_clock", "_due", "_timer", "pause", "series_began")

    def __init__(self, clock: Clock, check: Callable[[], None]) -> None:
        self._clock = clock
        self._check = check
        self._timer: Timer | None = None
        self._due = 0.0
        self.pause = 0.0
        """Seconds between the last check, or the beginning of a series, and the next check."""
        self.series_began = 0.0
        """When the first check of a series was planned."""

    @property
    def planned(self) -> bool:
        """Whether there will be another check."""
        return self._timer is not None

    @property
    def late(self) -> float:
        """How many seconds the current check is late: the handlers of such an event loop have had no time either."""
        return max(0.0, self._clock.monotonic() - self._due)

    def begin(self, seconds: float) -> None:
        """Plan the first check of a series."""
        self.series_began = self._clock.monotonic()
        self.plan(seconds)

    def plan(self, seconds: float) -> None:
        """Plan the next check."""
        self.stop()
        self.pause = seconds
        self._due = self._clock.monotonic() + seconds
        self._timer = self._clock.call_later(seconds, self._call)

    def plan_within(self, seconds: float) -> None:
        """Bring the planned check forward, if it is later."""
        if self._timer is not None and self._due - self._clock.monotonic() > seconds:
            self.plan(seconds)

    def stop(self) -> None:
        """Cancel the check that is planned."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _call(self) -> None:
        self._timer = None
        self._check()


class Pauses(Generic[S]):
    """The pauses between tries of subjects that are refused: each twice as long as the one before, with jitter."""

    __slots__ = ("_clock", "_first", "_longest", "_next", "_random")

    def __init__(self, clock: Clock, random: Random, *, first: float, longest: float) -> None:
        self._clock = clock
        self._random = random
        self._first = first
        self._longest = longest
        self._next: dict[S, tuple[int, float]] = {}  # refusals in a row, and the time of the next try

    def __contains__(self, subject: S) -> bool:
        return subject in self._next

    def mark(self, subject: S) -> None:
        """Count a subject among those that are refused, before its first try."""
        self._next[subject] = 0, 0.0

    def refused(self, subject: S) -> int:
        """Record that a try was refused; return how many were in a row."""
        times = 1 + (self._next[subject][0] if subject in self._next else 0)
        pause = min(self._first * 2.0 ** min(times - 1, 30), self._longest) * self._random.uniform(0.75, 1)
        self._next[subject] = times, self._clock.monotonic() + pause
        return times

    def left(self, subject: S) -> float:
        """Return the seconds until the next try; 0: it may be now."""
        return max(0.0, self._next[subject][1] - self._clock.monotonic()) if subject in self._next else 0.0

    def forget(self, subject: S) -> None:
        """Forget the refusals of a subject."""
        self._next.pop(subject, None)

    def clear(self) -> None:
        """Forget all refusals."""
        self._next.clear()


class RecentlyFinished:
    """Counts what was finished in the last two ticks, which take ``tick`` seconds each."""

    __slots__ = ("_before", "_begun", "_clock", "_number", "_tick")

    def __init__(self, clock: Clock, tick: float) -> None:
        self._clock = clock
        self._tick = tick
        self._begun = clock.monotonic()
        self._number = 0  # since `_begun`
        self._before = 0  # in the tick before

    def add(self, number: int) -> None:
        """Count some that are finished now."""
        if (passed := self._clock.monotonic() - self._begun) >= self._tick:
            self._before = self._number if passed < 2 * self._tick else 0
            self._number = 0
            self._begun += passed
        self._number += number

    def recent(self, span: float | None = None) -> int:
        """Return how many were finished last, in up to two ticks; 0 if that began ``span`` seconds (two ticks) ago."""
        span = 2 * self._tick if span is None else span
        return self._number + self._before if self._clock.monotonic() - self._begun < span else 0
