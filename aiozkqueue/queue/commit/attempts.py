"""The record of an attempt at a message, which is written before the delivery if the policy counts deliveries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.errors import ClaimLostError
from aiozkqueue.layout import AttemptRecord
from aiozkqueue.queue.state.bundle_hold import BundledClaim, bundles_of
from aiozkqueue.zookeeper import BadVersionError, Check, Create, NodeExistsError, NoNodeError

from .dispositions import refusal_of, write_meta
from .write import OPERATION_WEIGHT, Part

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.zookeeper import Operation, Result, ZooKeeperError

    from .meter import Meter
    from .write import Composition


class CountAttempt(Part):
    """The record of an attempt at a message, written before its delivery."""

    __slots__ = ("_claim", "chains", "generation")

    def __init__(self, claim: Claim) -> None:
        super().__init__(2 * OPERATION_WEIGHT)
        self.chains = bundles_of((claim,))
        self.generation = claim.generation
        self._claim = claim

    def compose(self, composition: Composition) -> None:
        """Check that the item is still ours, and count the attempt."""
        claim, sent = self._claim, composition.operations
        if isinstance(claim, BundledClaim):
            composition.continue_chain(claim.bundle, self)
            if not claim.recorded:  # else an attempt was counted before, and the message was not delivered
                claim.bundle.count_attempt(claim.position, claim.attempts + 1)
            return
        record = AttemptRecord(claim.attempts + 1, claim.id, claim.error, retries=claim.retries)
        sent += [Check(claim.path, claim.version)] if claim.group_lock is None else claim.group_lock.checks(claim)
        sent.append(write_meta(claim, record))

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Raise the loss of the claim, or the reason why its attempts cannot be counted."""
        claim = self._claim
        if isinstance(claim, BundledClaim) and isinstance(error, NoNodeError | BadVersionError):
            claim.bundle.lose()
        if isinstance(error, NoNodeError) and isinstance(operation, Create):
            return claim.state.repair(operation, error)  # the parent of the records is missing
        if isinstance(error, NodeExistsError):
            raise ClaimLostError(
                f"message {claim.id} of queue {claim.state.name!r}: another client has counted an attempt at it in "
                "the meantime"
            )
        raise refusal_of(claim, operation, error)

    def applied(self, results: Sequence[Result] | None, meter: Meter | None) -> None:  # noqa: ARG002 - neither is needed
        """Update the claim's count."""
        claim = self._claim
        if claim.recorded:
            return
        claim.attempts += 1
        claim.recorded = True
        claim.meta_version = 0 if claim.meta_version is None else claim.meta_version + 1
