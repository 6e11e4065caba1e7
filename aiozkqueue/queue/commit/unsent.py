"""The writes that are not under way, in the order in which they are sent; pure.

At most one multi about a chain is under way (see `Chain`). A write whose chain is busy is parked, and later writes
about the same chains are parked behind it, so writes about one chain keep their order. The others pass them.

Writes that do the same to the same subject (see `Part.subject`) are kept and sent as companions of the first, which
saves most of what each would cost. They are apart again as soon as the multi is not simply applied.
"""

from __future__ import annotations

import bisect
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .write import AtomicWrite, Chain

#: Bytes of a batch.
GROUP_BYTES = 512 * 1024
#: Writes of a batch.
GROUP = 250
#: Companions of a write.
COMPANIONS = 63


class UnsentWrites:
    """Writes ordered by their number: those that are ready, and those that are parked until a chain is free."""

    __slots__ = ("_busy", "_leaders", "_parked", "_reserved", "arrived", "ready")

    def __init__(self) -> None:
        self.ready: deque[AtomicWrite] = deque()
        """The writes that may be in the next batch."""
        self.arrived: int = 0
        """The number of writes that were added since the last batch."""
        self._leaders: dict[object, AtomicWrite] = {}  # by subject: the writes that may get companions
        self._parked: list[AtomicWrite] = []
        self._busy: set[Chain] = set()  # chains of the multis under way
        self._reserved: set[Chain] = set()  # chains of the parked writes

    def add(self, atomic_write: AtomicWrite) -> bool:
        """Add a new write; return whether it is a companion of another."""
        self.arrived += 1
        part = atomic_write.part
        subject = part.subject
        if subject is not None:
            leader = self._leaders.get(subject)
            # A put does not pass the puts of another write.
            if leader is not None and (not part.queues or (self.ready and self.ready[-1] is leader)):
                leader.companions.append(atomic_write)
                if len(leader.companions) >= COMPANIONS:
                    self._close(leader)
                return True
            self._leaders[subject] = atomic_write
            atomic_write.leads = subject
        self.ready.append(atomic_write)
        return False

    def restore(self, atomic_write: AtomicWrite) -> None:
        """Put a write back in front of those with a higher number."""
        bisect.insort(self.ready, atomic_write, key=_number_of)

    def remove(self, atomic_write: AtomicWrite) -> bool:
        """Remove a write; return False if it is not here."""
        for writes in (self.ready, self._parked):
            for position, leader in enumerate(writes):
                if atomic_write is leader or atomic_write in leader.companions:
                    del writes[position]
                    self._close(leader)
                    for member in leader.apart():
                        if member is not atomic_write:
                            bisect.insort(writes, member, key=_number_of)
                    return True
        return False

    def pop(self) -> AtomicWrite | None:
        """Remove the write with the lowest number, even if its chains are busy; return None if all are removed."""
        self._unpark()
        if not self.ready:
            return None
        leader = self.ready.popleft()
        self._close(leader)
        first, *rest = leader.apart()
        self.ready.extendleft(reversed(rest))
        return first

    def next_batch(self, max_request: int) -> list[AtomicWrite]:
        """Remove the writes of the next multi, whose chains are busy from now on; there may be none.

        A multi of several writes takes up to half of the largest request, because weights are estimates.
        """
        most = min(GROUP_BYTES, max_request // 2)
        ready = self.ready
        batch: list[AtomicWrite] = []
        chains: set[Chain] = set()
        weight = number = self.arrived = 0
        while ready and number < GROUP:
            atomic_write = ready[0]
            if atomic_write.part.chains and self._must_park(atomic_write):
                continue
            more = atomic_write.weight
            if batch and (atomic_write.alone or weight + more > most):
                break
            weight += more
            number += 1 + len(atomic_write.companions)
            self._close(atomic_write)
            batch.append(ready.popleft())
            if atomic_write.part.chains:
                chains.update(atomic_write.part.chains)
            if atomic_write.alone:
                break
        self._busy |= chains
        return batch

    def free(self, chains: set[Chain]) -> None:
        """Record that the multi about these chains is no longer under way; parked writes are ready again."""
        if chains:
            self._busy -= chains
            self._unpark()

    def _close(self, leader: AtomicWrite) -> None:
        """Record that a write gets no more companions. Its subject may be another by now, or none."""
        subject, leader.leads = leader.leads, None
        if subject is not None and self._leaders.get(subject) is leader:
            del self._leaders[subject]

    def _must_park(self, atomic_write: AtomicWrite) -> bool:
        """Park the first ready write if a chain of it is busy, or is wanted by an earlier parked write."""
        chains = atomic_write.part.chains
        if self._busy.isdisjoint(chains) and self._reserved.isdisjoint(chains):
            return False
        self._parked.append(self.ready.popleft())
        self._reserved.update(chains)
        return True

    def _unpark(self) -> None:
        self._reserved = set()  # also if the writes that reserved chains have been removed
        if self._parked:
            self.ready = deque(sorted([*self._parked, *self.ready], key=_number_of))
            self._parked = []


def _number_of(atomic_write: AtomicWrite) -> int:
    return atomic_write.number
