"""Divides the items among the live consumers. Pure: locks make claims correct, this makes contention rare.

The items are dealt out in turn, by their sequence numbers, over the sorted registry of live consumers: n messages that
are put together go to n different consumers. So do n messages that have left bundles: they share
the sequence numbers of their bundles, and are dealt out by the counters in their ids. For each item, the other
consumers follow in a different order, so that a busy consumer's items are spread over all of them. An idle consumer
waits for its turn in that order, between `FIRST_WAIT` and `LAST_WAIT` for any number of consumers; then it checks
whether the item still exists.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING, Final
from zlib import crc32

from aiozkqueue.layout import LEFT_BUNDLE, SEQUENCE_DIGITS, item_number

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Seconds that the next consumer in line, and the last one, wait for an item's own consumer.
FIRST_WAIT: Final = 0.015
LAST_WAIT: Final = 0.040
#: Spreads consecutive numbers.
_GOLDEN: Final = 0x9E3779B1


@lru_cache
def _steps(positions: int) -> tuple[int, ...]:
    """Return the factors that permute the positions in line: those coprime to their number."""
    return tuple(step for step in range(1, positions + 1) if gcd(step, positions) == 1)


class Partition:
    """One consumer's share of the items.

    Args: rank: its place, from 0. count: how many there are. scattered: deal by a hash instead, because the items are a
        selection, whose numbers may all be even, for example. queue: the name of the queue, so that the first items of
        many queues do not all go to the same consumer.
    """

    __slots__ = ("_peer_count", "_queue", "_steps", "alone", "count", "rank", "scattered")

    def __init__(self, rank: int = 0, count: int = 1, *, scattered: bool = False, queue: str = "") -> None:
        self.rank: int = rank
        self.count: int = count
        self.scattered: bool = scattered
        self.alone: bool = count == 1
        """Whether there is no other consumer."""
        self._queue = queue
        self._peer_count = max(1, count - 1)
        self._steps = _steps(self._peer_count)

    @classmethod
    def among(cls, own: str, registered: Iterable[str], *, scattered: bool = False, queue: str = "") -> Partition:
        """Return the share of ``own`` by the registry; all items if it is not (yet) listed there."""
        names = sorted(registered)
        return cls(names.index(own), len(names), scattered=scattered, queue=queue) if own in names else cls()

    def offset(self, lane: str) -> int:
        """Return the rotation of the deal for a lane: each lane numbers its items from 0."""
        return crc32(f"{self._queue}/{lane}".encode()) % self.count

    def owns(self, name: str, offset: int = 0) -> bool:
        """Whether this consumer comes first for an item."""
        return self.alone or (self._number(name) + offset - self.rank) % self.count == 0

    def distance(self, name: str, offset: int = 0) -> int:
        """Return how many live consumers come before this one for an item; 0: it is its own."""
        if self.alone:
            return 0
        number = self._number(name) + offset
        behind = (self.rank - number) % self.count
        if not behind:
            return 0
        mixed = (number * _GOLDEN >> 7) % 2**32
        step = self._steps[mixed % len(self._steps)]
        return 1 + (behind * step + mixed // self._peer_count) % self._peer_count

    def steal_delay(self, name: str, offset: int = 0) -> float:
        """Return how many seconds to leave an item to the consumers before this one."""
        distance = self.distance(name, offset)
        if not distance:
            return 0.0
        return min(LAST_WAIT, FIRST_WAIT + (LAST_WAIT - FIRST_WAIT) * (distance - 1) / max(1, self._peer_count - 1))

    def own(self, names: Iterable[str], offset: int = 0) -> list[str]:
        """Return this consumer's own items, in their order; a deep queue passes all its names at once."""
        count, rank, digits = self.count, self.rank - offset, SEQUENCE_DIGITS
        rank %= count
        if not self.scattered:
            try:
                # A call for each name would double the time of a deep queue.
                return [
                    name
                    for name in names
                    if (item_number(name) if name.startswith(LEFT_BUNDLE) else int(name[-digits:])) % count == rank
                ]
            except ValueError:
                pass  # another program's znodes
        return [name for name in names if self._number(name) % count == rank]

    def _number(self, name: str) -> int:
        if not self.scattered:
            try:
                return item_number(name)
            except ValueError:
                pass
        return crc32(name.encode())
