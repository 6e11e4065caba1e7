"""Measures how long a client has been without a connection, and decides when to log it. Pure."""

from __future__ import annotations

from itertools import chain, count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIRST, _EACH = (10.0, 60.0), 300.0  # seconds


class Outage:
    """One period without a connection, from its start; moments are the event loop's."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._moments: Iterator[float] = chain(_FIRST, count(_FIRST[-1] + _EACH, _EACH))
        self._next = next(self._moments)

    def lasted(self, now: float) -> float:
        """Return its duration so far, in seconds."""
        return now - self._began

    def must_log(self, now: float) -> bool:
        """Return whether to log it: once after ten seconds, once after a minute, then every five minutes."""
        due = False
        while self.lasted(now) >= self._next:
            self._next = next(self._moments)
            due = True
        return due
