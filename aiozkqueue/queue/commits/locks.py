"""What is written about a lock that is ours: that its message is about to be handed over, or that it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.errors import ClaimLostError
from aiozkqueue.layout import AttemptRecord
from aiozkqueue.zookeeper import Check, Delete, SetData

from .endings import refusal_of, write_meta
from .settlement import OPERATION_WEIGHT, Settlement

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from aiozkqueue.queue.claim import Claim
    from aiozkqueue.zookeeper import Operation, Result, ZooKeeperError


class AttemptSettlement(Settlement):
    """The record that a message is about to be handed over."""

    __slots__ = ("_claim",)

    def __init__(self, transaction_id: str, claim: Claim) -> None:
        super().__init__(transaction_id, claim.generation, 2 * OPERATION_WEIGHT)
        self._claim = claim

    def operations(self) -> Sequence[Operation]:
        """Assert that the item is still ours, and count."""
        claim = self._claim
        record = AttemptRecord(claim.attempts + 1, claim.id)
        checks = [Check(claim.path, claim.version)] if claim.tenure is None else claim.tenure.checks(claim)
        return [*checks, write_meta(claim, record)]

    def refused(self, index: int, error: ZooKeeperError) -> Coroutine[object, object, None] | None:  # noqa: ARG002
        """Only a claim that is lost is ever refused."""
        raise refusal_of(self._claim, error)

    def applied(self, results: Sequence[Result] | None) -> None:  # noqa: ARG002 - nothing to learn from them
        """Count here too."""
        claim = self._claim
        claim.attempts += 1
        claim.recorded = True
        claim.meta_version = 0 if claim.meta_version is None else claim.meta_version + 1


class GhostSettlement(Settlement):
    """The removal of a lock behind which nothing can be had: its item had been consumed, or may not be read by us.

    With ``bell``, a znode is written to besides, so that idle consumers hear of it.
    """

    __slots__ = ("_bell", "_gone", "_path")

    def __init__(
        self, transaction_id: str, generation: int, path: str, gone: Callable[[], None], bell: str | None = None
    ) -> None:
        super().__init__(transaction_id, generation, 2 * OPERATION_WEIGHT)
        self._path = path
        self._gone = gone
        self._bell = bell

    def operations(self) -> Sequence[Operation]:
        """Remove the lock."""
        return [Delete(self._path)] if self._bell is None else [Delete(self._path), SetData(self._bell, b"")]

    def refused(self, index: int, error: ZooKeeperError) -> Coroutine[object, object, None] | None:  # noqa: ARG002
        """It is gone already."""
        self._gone()
        raise ClaimLostError(f"{self._path}: {error}")

    def applied(self, results: Sequence[Result] | None) -> None:  # noqa: ARG002 - nothing to learn from them
        """The lock is gone."""
        self._gone()

    def over(self) -> None:
        """The server has removed the lock."""
        self._gone()
