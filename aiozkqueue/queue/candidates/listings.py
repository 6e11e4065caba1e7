"""What is kept of a listing that comes in piece by piece: collectors for `children_into`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_SEQUENCE_DIGITS: Final = 10


class Matching:
    """The names that pass a test, in no order."""

    def __init__(self, passes: Callable[[str], object]) -> None:
        self._passes = passes
        self.names: list[str] = []

    def take(self, names: list[str]) -> None:
        """Keep those that pass."""
        self.names += filter(self._passes, names)


class Earliest:
    """Of the names that pass a test, the first ``limit`` by the sequence that each ends in.

    However many come, few more are held at a time: a quarter, and a piece. Most names of a long listing are too late to
    be tested: once there are enough, only what comes before the last of them is looked at.
    """

    def __init__(self, limit: int, passes: Callable[[str], object]) -> None:
        self._limit = limit
        self._passes = passes
        self._kept: list[str] = []
        self._last = ""
        """The sequence that the first ``limit`` of what has come do not go beyond; empty: there are fewer."""

    def take(self, names: list[str]) -> None:
        """Keep those that pass, and may be among the first."""
        last = self._last
        if last:
            names = [name for name in names if name[-_SEQUENCE_DIGITS:] < last]
        self._kept += filter(self._passes, names)
        if len(self._kept) >= self._limit * 5 // 4:  # what was sorted before is sorted again in no time
            self._prune()

    def names(self) -> list[str]:
        """Return them, the first first."""
        self._prune()
        return self._kept

    def _prune(self) -> None:
        self._kept.sort(key=_sequence)
        del self._kept[self._limit :]
        if len(self._kept) == self._limit:
            self._last = _sequence(self._kept[-1])


def _sequence(name: str) -> str:
    return name[-_SEQUENCE_DIGITS:]
