"""How long somebody waits, over all that he waits for."""

from __future__ import annotations

from typing import Final

from .clock import Clock


class Deadline:
    """Seconds to wait from now on (None: for ever), however many things are waited for one after the other."""

    __slots__ = ("_clock", "_deadline", "seconds")

    def __init__(self, seconds: float | None, clock: Clock) -> None:
        self.seconds: float | None = seconds
        """How long it was when this began: what whoever waits in vain is to be told."""
        self._clock = clock
        self._deadline = None if seconds is None else clock.monotonic() + seconds

    @property
    def left(self) -> float | None:
        """What is left of it, seconds; 0: nothing."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock.monotonic())


#: Which need no clock of anybody's.
AT_ONCE: Final = Deadline(0, Clock())
FOREVER: Final = Deadline(None, Clock())
