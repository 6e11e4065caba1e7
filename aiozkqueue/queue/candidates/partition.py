"""Which of several live consumers takes an item first. Pure: locks make it correct, this makes it cheap.

The items are dealt out in turn, by their sequence numbers, over the sorted registry of live consumers: as many messages
as there are consumers, put together, are one for each. Behind its own consumer each item has the others in an order of
its own, which spreads what a busy consumer leaves over all of them. Whoever is free waits for its place in that order,
between `FIRST_WAIT` and `LAST_WAIT`, whatever the number of consumers; then it looks whether the item is still there.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING, Final
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Seconds that the next in line leaves to an item's consumer, and those that the last in line does.
FIRST_WAIT: Final = 0.015
LAST_WAIT: Final = 0.040
_SEQUENCE_DIGITS: Final = 10
#: Spreads consecutive numbers.
_GOLDEN: Final = 0x9E3779B1


@lru_cache
def _steps(places: int) -> tuple[int, ...]:
    """Factors that permute the places in line: they have no divisor in common with their number."""
    return tuple(step for step in range(1, places + 1) if gcd(step, places) == 1)


class Partition:
    """One consumer's place among the live ones.

    Args:
        rank: its place, from 0.
        count: how many there are.
        scattered: deal by a hash instead, since the items are a selection, whose numbers may be all even, say.
        queue: whose items they are: of many queues the first item is not always the same one's.
    """

    __slots__ = ("_others", "_queue", "_steps", "count", "rank", "scattered")

    def __init__(self, rank: int = 0, count: int = 1, *, scattered: bool = False, queue: str = "") -> None:
        self.rank: int = rank
        self.count: int = count
        self.scattered: bool = scattered
        self._queue = queue
        self._others = max(1, count - 1)
        self._steps = _steps(self._others)

    @classmethod
    def among(cls, own: str, registered: Iterable[str], *, scattered: bool = False, queue: str = "") -> Partition:
        """Find the place of ``own`` in the registry; alone when it is not (yet) seen there."""
        names = sorted(registered)
        return cls(names.index(own), len(names), scattered=scattered, queue=queue) if own in names else cls()

    @property
    def alone(self) -> bool:
        """Whether nobody else takes."""
        return self.count == 1

    def offset(self, lane: str) -> int:
        """By how much the deal of a lane is turned: each lane counts its items from 0."""
        return crc32(f"{self._queue}/{lane}".encode()) % self.count

    def distance(self, name: str, offset: int = 0) -> int:
        """How many live consumers come before this one for an item; 0: it is its own."""
        if self.count == 1:
            return 0
        number = self._number(name) + offset
        behind = (self.rank - number) % self.count
        if not behind:
            return 0
        mixed = (number * _GOLDEN >> 7) % 2**32
        step = self._steps[mixed % len(self._steps)]
        return 1 + (behind * step + mixed // self._others) % self._others

    def patience(self, name: str, offset: int = 0) -> float:
        """How many seconds to leave an item to those who come before."""
        distance = self.distance(name, offset)
        if not distance:
            return 0.0
        return min(LAST_WAIT, FIRST_WAIT + (LAST_WAIT - FIRST_WAIT) * (distance - 1) / max(1, self._others - 1))

    def own(self, names: Iterable[str], offset: int = 0) -> list[str]:
        """Return the items that are this one's own, in their order; a deep queue's names come all at once."""
        count, rank, digits = self.count, self.rank - offset, _SEQUENCE_DIGITS
        rank %= count
        if not self.scattered:
            try:
                return [name for name in names if int(name[-digits:]) % count == rank]
            except ValueError:
                pass  # another program's znodes
        return [name for name in names if self._number(name) % count == rank]

    def _number(self, name: str) -> int:
        if not self.scattered:
            try:
                return int(name[-_SEQUENCE_DIGITS:])
            except ValueError:
                pass
        return crc32(name.encode())
