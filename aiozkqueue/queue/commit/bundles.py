"""The ends of claims on messages of bundles, and the return of messages that no taker has received.

A message that is finished sets its bit in the record of the bundle. A message that is redelivered later, or that leaves
the bundle undecided for another reason, becomes a single item in the multi that sets its bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.errors import (
    NotCommittedError,
    OutcomeUnknownError,
    SessionClosedError,
    SessionExpiredError,
    TransactionTooLargeError,
)
from aiozkqueue.layout import AttemptRecord, LockRecord, decode, single_of
from aiozkqueue.queue.state.hooks import FREE
from aiozkqueue.zookeeper import Create, NoNodeError, SetData

from .write import OPERATION_WEIGHT, Part

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence

    from aiozkqueue.errors import QueueError
    from aiozkqueue.queue.state.bundle_hold import BundledClaim, BundleHold
    from aiozkqueue.queue.state.hooks import RefusalHandler
    from aiozkqueue.zookeeper import Operation, Result, ZooKeeperError

    from .dispositions import Disposition
    from .meter import Meter
    from .write import Composition


def end_bundled(
    claim: BundledClaim, disposition: Disposition, due: int | None, composition: Composition, *, fenced: bool
) -> Iterator[tuple[RefusalHandler | None, Operation]]:
    """Record the end of one message in its bundle; return the other operations of the end, each with its handler.

    ``due`` is when the message is redelivered, ms in ZooKeeper's time; None: immediately. ``fenced``: the multi must be
    refused if the bundle is lost, even if the record already states all of this end.
    """
    hold = claim.bundle
    if hold.gone:
        return
    if disposition.kind == "unlock":
        # The fence: with a message that stays in a bundle, this write is refused if the bundle is lost.
        hold.count_attempt(claim.position, claim.attempts_made)
    elif disposition.kind != "release":
        hold.end(claim.position)
    elif stays(claim, disposition):
        if claim.delivered:
            claim.error = disposition.error
            hold.note_error(claim.position, claim.error)
            if fenced or not claim.recorded:
                hold.count_attempt(claim.position, claim.attempt)
    else:
        yield from _leave(claim, disposition, due, composition)


def _leave(
    claim: BundledClaim, disposition: Disposition, due: int | None, composition: Composition
) -> Iterator[tuple[RefusalHandler | None, Operation]]:
    """Make a message of a bundle a single item, which waits until it is due."""
    hold = claim.bundle
    for operation in hold.guard():
        yield None, operation
    hold.end(claim.position)
    record = _undelivered(claim, due)
    if claim.delivered:
        record = AttemptRecord(claim.attempt, claim.id, disposition.error, due, claim.retries)
    composition.count_bundled(claim.state, -1)
    for operation in as_single_item(claim, record, disposition.rewrite):
        yield claim.state, operation
    if due is not None:
        lock = LockRecord(claim.id, claim.owner, due, disposition.leased)
        yield claim.state, Create(claim.lock, lock.encode())
        yield claim.state, Create(claim.state.paths.due_node(due, claim.id), claim.place.encode())


def stays(claim: BundledClaim, disposition: Disposition) -> bool:
    """Return whether a released message stays in its bundle, whose record holds only the number of its attempts."""
    return not disposition.delay and disposition.rewrite is None and not claim.retries


def _undelivered(claim: BundledClaim, due: int | None = None) -> AttemptRecord | None:
    """Return the record of the attempts at a message that was not delivered this time; None: there were none."""
    attempts = claim.attempts - claim.recorded
    return AttemptRecord(attempts, claim.id, claim.error, due, claim.retries) if attempts else None


def as_single_item(claim: BundledClaim, record: AttemptRecord | None, rewrite: bytes | None = None) -> list[Operation]:
    """Return the operations that store a message of a bundle as a single item.

    An item with a record of attempts has a version above 0, so that its next holder reads the record.
    """
    header, body = (claim.header, claim.body) if rewrite is None else decode(rewrite)
    data = single_of(header, body, claim.created)
    if record is None:
        return [Create(claim.path, data)]
    meta = claim.state.paths.meta(claim.id)
    return [Create(claim.path, data), SetData(claim.path, data, 0), Create(meta, record.encode())]


class ReturnUndelivered(Part):
    """The return of messages of one bundle that no taker has received.

    The whole bundle is unlocked if nothing has been sent about it. Otherwise the messages become single items.
    """

    __slots__ = ("_claims", "_hold", "_wakes", "_whole", "chains", "generation")

    def __init__(self, hold: BundleHold, claims: Sequence[BundledClaim]) -> None:
        super().__init__(2 * OPERATION_WEIGHT + sum(len(claim.raw) + OPERATION_WEIGHT for claim in claims))
        self.generation = hold.generation
        self.chains = (hold,)
        self._hold = hold
        self._claims = claims
        self._whole = False  # whether the last composition unlocks the whole bundle
        self._wakes = True  # whether idle consumers are woken

    def compose(self, composition: Composition) -> None:
        """Add the operations that return the messages."""
        hold = self._hold
        if hold.gone or not self._claims:
            return
        composition.continue_chain(hold, self)
        self._whole = hold.untouched and len(self._claims) == hold.count
        if self._whole:
            hold.unlock()
            if self._wakes:  # a watch on items misses the removal of a lock
                composition.operations.extend(hold.state.wakeup_operations(hold.state.paths.items, hold.claim_id))
            return
        composition.operations += hold.guard()
        for claim in self._claims:
            composition.operations += as_single_item(claim, _undelivered(claim))
            hold.end(claim.position)
        composition.count_bundled(hold.state, -len(self._claims))

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Give up a hold that is lost; fail if ZooKeeper does not let this user store the messages."""
        hold = self._hold
        if hold.keeps(operation, error):
            return None
        if operation.path == hold.state.paths.items:
            self._wakes = False  # idle consumers also poll
        elif hold.is_about(operation) or isinstance(error, NoNodeError):  # without its lane, the queue is deleted
            hold.lose()
        else:
            raise NotCommittedError(f"{operation.path}: {error}")
        return None

    def reduce(self, error: QueueError) -> Coroutine[object, object, None] | None:
        """Keep the first half of the messages at hand if they are too many for one request; otherwise fail."""
        if isinstance(error, TransactionTooLargeError) and len(self._claims) > 1:
            half = len(self._claims) // 2
            kept, self._claims = self._claims[:half], self._claims[half:]
            for claim in reversed(kept):
                claim.settled(FREE)
            return None
        raise error

    def applied(self, results: Sequence[Result] | None, meter: Meter | None) -> None:  # noqa: ARG002 - neither is needed
        """Record that the messages are available to all consumers."""
        claims, self._claims = self._claims, ()
        if claims and not self._whole:
            self._hold.returned(claims)

    def failed(self, error: BaseException) -> None:
        """Keep the messages at hand; end the hold if the server has removed the lock."""
        if isinstance(error, SessionExpiredError):
            self._hold.over()
        elif not isinstance(error, SessionClosedError | OutcomeUnknownError):  # then the lock ends with the session
            for claim in reversed(self._claims):
                claim.settled(FREE)
