"""A deadline that several waits share."""

from __future__ import annotations

from typing import Final

from .clock import Clock


class Deadline:
    """A number of seconds from now (None: unlimited) that consecutive waits share."""

    __slots__ = ("_clock", "_deadline", "seconds")

    def __init__(self, seconds: float | None, clock: Clock) -> None:
        self.seconds: float | None = seconds
        """The number of seconds at the start, for the error message when the wait fails."""
        self._clock = clock
        self._deadline = None if seconds is None else clock.monotonic() + seconds

    @property
    def left(self) -> float | None:
        """The remaining seconds; 0 when the deadline has passed."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock.monotonic())


#: These need no injected clock.
AT_ONCE: Final = Deadline(0, Clock())
FOREVER: Final = Deadline(None, Clock())
