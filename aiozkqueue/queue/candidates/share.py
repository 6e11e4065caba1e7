"""Which of several live consumers takes an item first. Pure: locks make it correct, this makes it cheap.

The items are dealt out by a hash over the sorted registry of live consumers. Each consumer takes its own, and what is
another's only when that one leaves it lying: the next in line after 30 ms, the one after that after 60 ms, and so on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Seconds that the next in line leaves to an item's consumer; each further one waits twice as long.
STEAL_AFTER = 0.03
MOST_DOUBLINGS = 6


class Share:
    """One consumer's place among the live ones."""

    __slots__ = ("_patience", "count", "rank")

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank: int = rank
        self.count: int = count
        self._patience = [STEAL_AFTER * 2.0 ** min(distance - 1, MOST_DOUBLINGS) for distance in range(count)]
        self._patience[0] = 0.0

    @classmethod
    def among(cls, own: str, registered: Iterable[str]) -> Share:
        """Find the place of ``own`` in the registry; alone when it is not (yet) seen there."""
        names = sorted(registered)
        return cls(names.index(own), len(names)) if own in names else cls()

    @property
    def alone(self) -> bool:
        """Whether nobody else takes."""
        return self.count == 1

    def distance(self, name: str) -> int:
        """How many live consumers come before this one for an item; 0: it is its own."""
        return 0 if self.count == 1 else (self.rank - crc32(name.encode())) % self.count

    def patience(self, name: str) -> float:
        """How many seconds to leave an item to those who come before."""
        return 0.0 if self.count == 1 else self._patience[(self.rank - crc32(name.encode())) % self.count]

    def own(self, names: Iterable[str]) -> list[str]:
        """Return the items that are this one's own, in their order; a deep queue's names come all at once."""
        count, rank = self.count, self.rank
        return [name for name in names if crc32(name.encode()) % count == rank]
