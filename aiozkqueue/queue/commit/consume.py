"""The ends of messages of bundles that were processed: each only sets its bit in the record of its bundle.

This is the usual end of a message. So a separate part does it by arithmetic, where others handle each claim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.queue.state.bundle_hold import BundledClaim

from .dispositions import CONSUME
from .held import BUNDLED_WEIGHT, EndClaims

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.queue.commit.meter import Meter
    from aiozkqueue.queue.state.bundle_hold import BundleHold
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.zookeeper import Result

    from .dispositions import Disposition
    from .write import Composition


class ConsumeBundled(EndClaims):
    """The ends of processed messages of bundles. If their queue has end hooks by now, they are composed as any other.

    ``ends`` holds the positions of the messages in each bundle, as a bit set.
    """

    __slots__ = ("_alone", "_ends")

    def __init__(
        self,
        transaction_id: str,
        dispositions: dict[Claim, Disposition],
        generation: int | None,
        ends: dict[BundleHold, int],
    ) -> None:
        self.weight = BUNDLED_WEIGHT * len(dispositions)
        self.repairs = 0
        self.generation = generation
        self.chains = tuple(ends)
        self._transaction_id = transaction_id
        self._dispositions = dispositions
        self._ends = ends
        self._shared = False
        self._alone = True  # whether only the records of the bundles were written

    @property
    def subject(self) -> object | None:
        """The bundle of the messages, if it is one, and nothing else depends on their ends."""
        if len(self._ends) > 1:
            return None
        (hold,) = self._ends
        return None if hold.state.snapshot.end_hooks else hold

    def compose(self, composition: Composition) -> None:
        """Set the bits of the messages."""
        self._alone = True
        for hold in self._ends:
            if hold.state.snapshot.end_hooks:
                self._alone = False
                super().compose(composition)
                return
        for hold, ended in self._ends.items():
            composition.join(hold, self)
            hold.consume(ended)

    def applied(self, results: Sequence[Result] | None, meter: Meter | None) -> None:
        """Count the messages; their bundles have settled them."""
        if not self._alone:
            super().applied(results, meter)
        elif meter is not None:
            for claim in self._dispositions:
                meter.ended(claim, "consume")


def end_claims(transaction_id: str, dispositions: dict[Claim, Disposition], generation: int | None) -> EndClaims:
    """Return the ends of the claims of a commit."""
    ends: dict[BundleHold, int] = {}
    for claim, disposition in dispositions.items():
        if disposition is not CONSUME or not isinstance(claim, BundledClaim):
            return EndClaims(transaction_id, dispositions, generation)
        hold = claim.bundle
        ends[hold] = ends.get(hold, 0) | 1 << claim.position
    for hold in ends:
        if hold.state.snapshot.end_hooks:
            return EndClaims(transaction_id, dispositions, generation)
    return ConsumeBundled(transaction_id, dispositions, generation, ends)
