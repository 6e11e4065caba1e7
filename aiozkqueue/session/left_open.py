"""Deliveries that a loop with ``settle="explicit"`` has left open, which the program still has to settle."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiozkqueue.queue.state.claim import Claim

log: Final = logging.getLogger(__name__)

#: The number of deliveries that are remembered at least before those that have been settled are forgotten.
_FEW: Final = 64


class _Work(Protocol):
    """The unit of work of a delivery."""

    @property
    def open(self) -> bool:
        """Whether it has not been settled."""
        ...

    @property
    def lost(self) -> bool:
        """Whether its claim is known to be lost."""
        ...

    @property
    def claims(self) -> Iterable[Claim]:
        """Its claim."""
        ...


class LeftOpen:
    """The deliveries that loops have left open; those that are still open when the session closes are logged."""

    def __init__(self) -> None:
        self._works: list[_Work] = []
        self._limit = _FEW

    def add(self, work: _Work) -> None:
        """Remember a delivery that its loop has left open."""
        self._works.append(work)
        if len(self._works) >= self._limit:
            self._works = [work for work in self._works if work.open]
            self._limit = max(_FEW, 2 * len(self._works))

    def report(self) -> None:
        """Log how many are still open, for each queue."""
        works, self._works = self._works, []
        queues = Counter(claim.state.name for work in works if work.open and not work.lost for claim in work.claims)
        for name, number in queues.items():
            log.warning(
                'queue %s: unsettled deliveries of loops with settle="explicit": %d; their messages stayed in flight '
                "until the session closed, and are redelivered; call commit(), rollback() or reject() of each delivery",
                name,
                number,
                extra={"queue": name},
            )
