"""The ends of claims in a commit. Their releases, which cannot fail, are in `release_claims`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from aiozkqueue.errors import ClaimLostError, SessionExpiredError
from aiozkqueue.layout import AttemptRecord, LockRecord
from aiozkqueue.moments import milliseconds_in
from aiozkqueue.queue.state.bundle_hold import BundledClaim, bundles_of
from aiozkqueue.queue.state.given_up import GivenUp
from aiozkqueue.queue.state.hooks import FREE, GONE, LEFT
from aiozkqueue.runtime.acl_errors import exceeds_quota
from aiozkqueue.zookeeper import (
    NO_VERSION,
    BadVersionError,
    Check,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    QuotaExceededError,
    SetData,
    new_delete,
)

from .bundles import end_bundled, stays
from .dispositions import (
    CONSUME,
    Disposition,
    create_dead_letter,
    describe_end,
    explain_loss,
    guard,
    hooks_of,
    refusal_of,
    weigh_disposition,
    write_meta,
)
from .unique_keys import freed_by
from .write import OPERATION_WEIGHT, Part

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence

    from aiozkqueue.queue.commit.meter import Meter
    from aiozkqueue.queue.state.bundle_hold import BundleHold
    from aiozkqueue.queue.state.claim import Claim, GroupHold
    from aiozkqueue.queue.state.hooks import RefusalHandler
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, Result, ZooKeeperError

    from .write import Composition

log: Final = logging.getLogger(__name__)

#: The approximate size in a multi of the end of one message of a bundle, bytes.
BUNDLED_WEIGHT: Final = 8


class EndClaims(Part):
    """The ends of the claims of a commit. A refusal fails it."""

    __slots__ = ("_dispositions", "_latest", "_now", "_plain", "_shared", "_transaction_id", "chains", "generation")

    def __init__(self, transaction_id: str, dispositions: dict[Claim, Disposition], generation: int | None) -> None:
        weight, bundled = 0, False
        for claim, disposition in dispositions.items():
            weight += weigh(claim, disposition)
            if claim.bundled:
                bundled = True
        self.weight = weight  # here, as in `CreateItems`
        self.repairs = 0
        self.generation = generation
        self._transaction_id = transaction_id
        self._dispositions = dispositions
        self._now = 0  # ZooKeeper's time of the last composition, if it is not plain
        self._latest = 0  # an upper bound of it
        self._shared = False  # whether the ends of several claims share operations
        self._plain = True  # whether each end only removes the item and its lock
        self.chains = bundles_of(dispositions) if bundled else ()

    @property
    def needs_time(self) -> bool:
        """See `Part`: a release with a delay has an end."""
        return any(disposition.delay for disposition in self._dispositions.values())

    def compose(self, composition: Composition) -> None:
        """Add the operations that end each claim."""
        sent = composition.operations
        start = len(sent)
        self._plain = True
        for claim, disposition in self._dispositions.items():
            if disposition is not CONSUME or not claim.plain or claim.state.snapshot.end_hooks:
                self._plain = False
                break
            # The fence comes first, so that it is the operation that is refused if the claim is lost.
            sent.append(new_delete((claim.path, claim.version)))
            sent.append(new_delete((claim.lock, -1)))
        if not self._plain:
            del sent[start:]
            self._now, self._latest = composition.now(), composition.latest()
            for claim, disposition in self._dispositions.items():
                self._end(claim, disposition, composition)
            if self._shared:
                self._end_shared(composition)

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Answer the refusal of a plain end."""
        claim = next(claim for claim in self._dispositions if _is_about(claim, operation))
        if isinstance(claim, BundledClaim) and claim.bundle.keeps(operation, error):
            return None
        return self.refused(claim, None, operation, error)

    def refused(
        self, claim: Claim | None, handler: RefusalHandler | None, operation: Operation, error: ZooKeeperError
    ) -> Coroutine[object, object, None] | None:
        """Fail the commit if a claim is lost; have other owners repair the cause.

        ``claim`` is the claim that it is about (None: of several), and ``handler`` handles its refusal instead of the
        claim.
        """
        if handler is not None:
            return handler.repair(operation, error)
        assert claim is not None  # noqa: S101 - an operation of several claims has a handler
        if isinstance(claim, BundledClaim) and isinstance(error, NoNodeError | BadVersionError):
            claim.bundle.lose()
        if operation.path == claim.state.paths.meta(claim.id):
            return self._answer_record(claim, operation, error)
        refusal = refusal_of(claim, operation, error)
        if isinstance(refusal, ClaimLostError):
            return explain_loss(claim, refusal)
        raise refusal

    def _end(self, claim: Claim, disposition: Disposition, composition: Composition) -> None:
        """End one claim; operations shared by several claims are left to `_end_shared`."""
        kind = disposition.kind
        if isinstance(claim, BundledClaim):
            composition.continue_chain(claim.bundle, self)
            due = self._due(disposition) if disposition.delay else None
            parts = end_bundled(claim, disposition, due, composition, fenced=self._fenced)
            stores = kind == "dead" or (kind in ("consume", "remove") and claim.state.snapshot.end_hooks)
            for operation in claim.bundle.guard() if stores else ():
                composition.add(operation, EndHandler(self, claim, None))
            if kind == "dead" and not claim.bundle.gone:
                composition.add(
                    create_dead_letter(claim, disposition.reason, self._now), EndHandler(self, claim, claim.state)
                )
        elif claim.group_lock is not None:
            self._shared = True
            parts = self._end_grouped(claim, disposition)
        elif kind in ("consume", "dead", "remove"):
            parts = self._remove(claim, disposition)
        elif kind == "unlock":
            self._shared = self._shared or disposition.left
            parts = iter(
                ((None, Check(claim.state.paths.locks, disposition.forced_version)), (None, Delete(claim.lock)))
            )
        else:
            self._shared = self._shared or not disposition.delay
            parts = self._release(claim, disposition)
        for handler, operation in parts:
            composition.add(operation, EndHandler(self, claim, handler))
        for end_hook in hooks_of(claim, disposition) if self._has_hooks(claim) else ():
            for attached_op in end_hook.attached_ops(claim, disposition, composition.now):
                composition.add(attached_op.operation, EndHandler(self, claim, attached_op.handler))

    def _end_shared(self, composition: Composition) -> None:
        """Add the operations on group locks, and one wake-up for all items that are available immediately."""
        wakeups: dict[str, QueueState] = {}
        group_locks: dict[GroupHold[Disposition], None] = {}
        for claim, disposition in self._dispositions.items():
            if claim.group_lock is not None:
                group_locks[claim.group_lock] = None
            elif not claim.bundled and (disposition.left or (disposition.kind == "release" and not disposition.delay)):
                wakeups[claim.wakeup] = claim.state
        for group_lock in group_locks:
            for claim, handler, operation in group_lock.lock_operations(self._dispositions, self._due):
                composition.add(operation, EndHandler(self, claim, handler))
        for wakeup, state in wakeups.items():
            if not self._wakes(state):
                continue
            # A watch on items misses the removal of a lock, so this write to their parent wakes idle consumers.
            for operation in state.wakeup_operations(wakeup, self._transaction_id):
                composition.add(operation, EndHandler(self, None, state))

    def _remove(self, claim: Claim, disposition: Disposition) -> Iterator[tuple[RefusalHandler | None, Operation]]:
        """Remove an item, or all of its messages but the rest. The fence comes first."""
        if claim.remainder is None:
            yield None, Delete(claim.path, claim.version)
        else:
            yield None, SetData(claim.path, claim.remainder, claim.version)
        yield None, Delete(claim.lock)
        if disposition.kind == "dead":
            yield claim.state, create_dead_letter(claim, disposition.reason, self._now)
        yield from self._remove_traces(claim)

    def _remove_traces(self, claim: Claim) -> Iterator[tuple[RefusalHandler | None, Operation]]:
        """Remove the attempt record and unique key of a message that is gone."""
        if claim.meta_version is not None and not claim.record_refused:
            yield None, Delete(claim.state.paths.meta(claim.id))
        if claim.fields is not None and (freed_key := freed_by(claim)) is not None:
            yield freed_key.handler, freed_key.operation

    def applied(self, results: Sequence[Result] | None, meter: Meter | None) -> None:  # noqa: ARG002 - results are not needed
        """Settle the claims, the last one first: each goes to the front of the available items."""
        if meter is not None:
            for claim, disposition in self._dispositions.items():
                meter.ended(claim, disposition.kind)
        if self._plain:
            for claim in reversed(self._dispositions):
                claim.settled(GONE)
        else:
            self._report_given_up()
            self._settle_claims()

    def _settle_claims(self) -> None:
        """Settle the claims, and those of groups after all others."""
        grouped: list[Claim] = []
        for claim, disposition in reversed(self._dispositions.items()):
            if claim.group_lock is not None:
                grouped.append(claim)
                continue
            if isinstance(claim, BundledClaim):
                self._settle_bundled(claim, disposition)
                continue
            if disposition.delay and claim.state.dialect is not None:
                claim.version += 1
                claim.state.release_later(claim, disposition.delay)
                continue
            if disposition.kind != "release":
                claim.settled(FREE if claim.remainder is not None or disposition.left else GONE)
            elif disposition.delay:
                claim.settled(LEFT)
                claim.state.retry_at(self._due(disposition), claim.id)
            else:
                claim.settled(FREE)
        for claim in reversed(grouped):
            if claim.group_lock is not None:
                claim.group_lock.ended(claim, self._dispositions[claim], self._due)

    def _settle_bundled(self, claim: BundledClaim, disposition: Disposition) -> None:
        """Settle a message of a bundle: it has left the bundle, or can be delivered again."""
        if disposition.kind not in {"release", "unlock"}:
            claim.settled(GONE)
        elif disposition.kind == "release" and not stays(claim, disposition):
            claim.settled(LEFT)
            if disposition.delay:
                claim.state.retry_at(self._due(disposition), claim.id)
        else:
            if claim.delivered:  # it stays in the bundle, and its next delivery is another attempt
                claim.attempts, claim.recorded = claim.attempt, False
            if disposition.delay:  # there is no single item that could wait
                claim.state.release_later(claim, disposition.delay)
            else:
                claim.settled(FREE)

    def _report_given_up(self) -> None:
        """Report the messages that are given up without having been processed."""
        for claim, disposition in self._dispositions.items():
            if disposition.reason:
                given_up = GivenUp(claim, describe_end(disposition), disposition.reason, self._now, disposition.cause)
                given_up.report(self._transaction_id)

    def failed(self, error: BaseException) -> None:
        """Settle the claims if the server has removed the locks."""
        if isinstance(error, SessionExpiredError):
            for claim in self._dispositions:
                claim.settled(LEFT)

    # -- overridden by releases, which can be reduced

    #: Whether a lost claim must fail the write.
    _fenced: ClassVar[bool] = True

    def _has_hooks(self, claim: Claim) -> bool:  # noqa: ARG002 - all do
        """Whether the queue's end hooks apply to this end."""
        return True

    def _guard(self, claim: Claim, disposition: Disposition) -> Operation:
        """Return the operation that fails unless the claim is still ours."""
        return guard(claim, disposition)

    def _wakes(self, state: QueueState) -> bool:  # noqa: ARG002 - all do
        """Whether idle consumers of a queue are woken."""
        return True

    def _answer_record(
        self, claim: Claim, operation: Operation, error: ZooKeeperError
    ) -> Coroutine[object, object, None] | None:
        """Adopt the attempt record that a refusal reveals, or leave the record out: the lock is still ours."""
        if isinstance(error, NoNodeError):
            if isinstance(operation, Create):  # the parent of the records is missing
                return claim.state.repair(operation, error)
            claim.meta_version = None
        elif isinstance(error, NodeExistsError | BadVersionError):
            claim.meta_version = -1  # another program has changed the record
        else:
            leave_out_record(claim, error, self._transaction_id)
        return None

    def _release(self, claim: Claim, disposition: Disposition) -> Iterator[tuple[RefusalHandler | None, Operation]]:
        if disposition.in_doubt:
            yield None, Check(claim.state.paths.locks, NO_VERSION)
            return
        if disposition.delay and claim.state.dialect is not None:
            yield None, SetData(claim.path, claim.raw, claim.version)
            yield from self._count(claim, disposition, None)
            return
        paths = claim.state.paths
        yield None, self._guard(claim, disposition)
        yield None, Delete(claim.lock)
        due = self._due(disposition) if disposition.delay else None
        if due is not None:
            yield None, Create(claim.lock, LockRecord(claim.id, claim.owner, due, disposition.leased).encode())
            yield claim.state, Create(paths.due_node(due, claim.id), claim.place.encode())
        yield from self._count(claim, disposition, due)

    def _count(self, claim: Claim, disposition: Disposition, due: int | None) -> Iterator[tuple[None, Operation]]:
        """Record the attempt that a release ends, or uncount it."""
        if claim.record_refused:
            return
        if claim.delivered:
            record = AttemptRecord(claim.attempt, claim.id, disposition.error, due, claim.retries)
            yield None, write_meta(claim, record)
        elif claim.recorded:
            # Counted but never delivered: this must not count as an attempt.
            record = AttemptRecord(claim.attempts - 1, claim.id, claim.error, retries=claim.retries)
            yield None, write_meta(claim, record)

    def _end_grouped(self, claim: Claim, disposition: Disposition) -> Iterator[tuple[RefusalHandler | None, Operation]]:
        """End the claim on one message of a group; the group lock decides about the lock itself."""
        if disposition.kind == "release":
            yield None, self._guard(claim, disposition)
            yield from self._count(claim, disposition, self._due(disposition) if disposition.delay else None)
            return
        yield None, Delete(claim.path, claim.version)
        if disposition.kind == "dead":
            yield claim.state, create_dead_letter(claim, disposition.reason, self._now)
        yield from self._remove_traces(claim)

    def _due(self, disposition: Disposition) -> int:
        if disposition.date is not None:  # the delay was computed by an estimate that may have changed
            return max(disposition.date, self._now + 1)
        # By the lower bound, the delay would be too short by the time that the only sample's reply took.
        return self._latest + max(1, milliseconds_in(disposition.delay))


class EndHandler(NamedTuple):
    """The handler of the refusal of one operation of a write that ends claims; see `EndClaims.refused`."""

    ends: EndClaims
    claim: Claim | None
    handler: RefusalHandler | None

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """See `RefusalHandler`."""
        return self.ends.refused(self.claim, self.handler, operation, error)


class ConsumeBundled(EndClaims):
    """The ends of processed messages of bundles: each only sets its bit in the record of its bundle.

    This is the usual end of a message, so it is done by arithmetic, where `EndClaims` handles each claim. If their
    queue has end hooks by now, they are composed as any other.

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

    def add(self, claim: BundledClaim) -> None:
        """Add the end of another message of the same bundles."""
        self._dispositions[claim] = CONSUME
        self._ends[claim.bundle] |= 1 << claim.position

    def compose(self, composition: Composition) -> None:
        """Set the bits of the messages."""
        self._alone = True
        for hold in self._ends:
            if hold.state.snapshot.end_hooks:
                self._alone = False
                super().compose(composition)
                return
        for hold, ended in self._ends.items():
            composition.continue_chain(hold, self)
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


def _is_about(claim: Claim, operation: Operation) -> bool:
    """Whether an operation that was added without a handler is about a claim."""
    if isinstance(claim, BundledClaim) and claim.bundle.is_about(operation):
        return True
    return operation.path in (claim.path, claim.lock)


def weigh(claim: Claim, disposition: Disposition) -> int:
    """Return the approximate size of a claim's end in a multi with the queue's features, in bytes."""
    if disposition is CONSUME:
        weight = BUNDLED_WEIGHT if claim.bundled else 3 * OPERATION_WEIGHT
    else:
        weight = weigh_disposition(claim, disposition)
    if hooks := claim.state.snapshot.end_hooks if disposition is CONSUME else hooks_of(claim, disposition):
        weight += sum(end_hook.weight(claim, disposition) for end_hook in hooks)
    return weight


def leave_out_record(claim: Claim, error: Exception, transaction_id: str) -> None:
    """Stop writing a claim's attempt record: a foreign znode must not block the message."""
    claim.record_refused = True
    path = claim.state.paths.meta(claim.id)
    remedy = f"remove {path} with the znodes below it, or let this user write to it"
    log.warning(
        "queue %s: the record of attempts at message %s cannot be changed, and is left unchanged: %s; %s",
        claim.state.name,
        claim.id,
        error,
        QuotaExceededError.advice if exceeds_quota(error) else remedy,
        extra=claim.log_ids(transaction_id),
    )
