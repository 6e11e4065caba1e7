"""What is written about a lock that is ours: that its message is about to be handed over, or that it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.errors import ClaimLostError
from aiozkqueue.layout import AttemptRecord
from aiozkqueue.queue.runtime.acl_errors import denied
from aiozkqueue.zookeeper import (
    BadVersionError,
    Check,
    Create,
    Delete,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    SetData,
    ZooKeeperError,
)

from .dispositions import refusal_of, write_meta
from .write import OPERATION_WEIGHT, AtomicWrite

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, Result


class AttemptWrite(AtomicWrite):
    """The record that a message is about to be handed over."""

    __slots__ = ("_claim",)

    def __init__(self, transaction_id: str, claim: Claim) -> None:
        super().__init__(transaction_id, claim.generation, 2 * OPERATION_WEIGHT)
        self._claim = claim

    def compose(self, sent: list[Operation]) -> None:
        """Assert that the item is still ours, and count."""
        claim = self._claim
        record = AttemptRecord(claim.attempts + 1, claim.id, retries=claim.retries)
        sent += [Check(claim.path, claim.version)] if claim.group_lock is None else claim.group_lock.checks(claim)
        sent.append(write_meta(claim, record))

    def refused(
        self,
        index: int,  # noqa: ARG002 - whichever it is, the claim is lost
        operation: Operation,
        error: ZooKeeperError,
    ) -> Coroutine[object, object, None] | None:
        """The claim is lost, or its attempts cannot be counted."""
        claim = self._claim
        if isinstance(error, NoNodeError) and isinstance(operation, Create):
            return claim.store.repair(operation, error)  # the folder of the records is missing
        if isinstance(error, NodeExistsError):
            raise ClaimLostError(
                f"message {claim.id} of queue {claim.store.name!r}: others have counted an attempt at it meanwhile"
            )
        raise refusal_of(claim, operation, error)

    def applied(self, results: Sequence[Result] | None) -> None:  # noqa: ARG002 - nothing to learn from them
        """Count here too."""
        claim = self._claim
        claim.attempts += 1
        claim.recorded = True
        claim.meta_version = 0 if claim.meta_version is None else claim.meta_version + 1


class LockRef(NamedTuple):
    """A lock of ours."""

    path: str
    record: bytes
    """Its data, which tells it from any other's."""
    forced_version: int
    """The version of the folder of locks at some moment before it was made, or while it was ours."""


class RemoveOrphanLock(AtomicWrite):
    """The removal of a lock behind which nothing can be had: its item had been consumed, or may not be read by us.

    With no item to touch there is no fence, and a lock that another made after ours was forced open has the same path.
    So nothing may have been forced open in the queue since ours was made; if it was, whose the lock is gets looked up.
    With ``wakeup``, a znode is written to besides, so that idle consumers hear of it.
    """

    __slots__ = ("_gone", "_lock", "_store", "_wakeup")

    def __init__(
        self,
        transaction_id: str,
        generation: int,
        store: QueueState,
        lock: LockRef,
        gone: Callable[[], None],
        *,
        wakeup: str | None = None,
    ) -> None:
        super().__init__(transaction_id, generation, 3 * OPERATION_WEIGHT)
        self._store = store
        self._lock = lock
        self._gone = gone
        self._wakeup = wakeup

    def compose(self, sent: list[Operation]) -> None:
        """Remove the lock."""
        sent += (Check(self._store.paths.locks, self._lock.forced_version), Delete(self._lock.path))
        if self._wakeup is not None:
            sent.append(SetData(self._wakeup, b""))

    def refused(
        self,
        index: int,
        operation: Operation,
        error: ZooKeeperError,
    ) -> Coroutine[object, object, None] | None:
        """Look whose it is when any was forced open since; else it is gone already, or may not be removed by us."""
        if index == 0 and isinstance(error, BadVersionError):
            return self._look()
        if operation.path == self._wakeup:
            self._wakeup = None  # the lock must go; who is idle finds what it misses by looking
            return None
        self._gone()
        if isinstance(error, NoAuthError):
            raise denied(self._store.name, error)
        raise ClaimLostError(f"{self._lock.path}: {error}")

    async def _look(self) -> None:
        lock, generation = self._lock, self.generation
        assert generation is not None  # noqa: S101 - a lock is of a session
        try:
            forced_version = await self._store.unforced(lock.path, lambda node: node.data == lock.record, generation)
        except ZooKeeperError:
            self._gone()  # with the session, or as far as can be known here
            raise
        if forced_version is None:
            self._gone()
            raise ClaimLostError(f"{lock.path}: forced open")
        self._lock = lock._replace(forced_version=forced_version)

    def applied(self, results: Sequence[Result] | None) -> None:  # noqa: ARG002 - nothing to learn from them
        """The lock is gone."""
        self._gone()

    def over(self) -> None:
        """The server has removed the lock."""
        self._gone()
