"""The release of claims. It always succeeds: the parts that ZooKeeper refuses are left out, down to the lock alone.

A release is sent in portions that each fit into one request. A refusal concerns one claim and reduces it by one step,
so the number of refusals is bounded:

1. The release as decided, with the record of the attempt, the due time of the retry, or the dead letter.
2. ``[check item, delete lock]``, with the timed lock of a delay. If even that is refused, this session keeps the claim
   for the delay, and then releases it without one; it does the same with the lock of a group.
3. ``[check locks znode, delete lock]``, after a read that shows that the lock is ours.
4. Nothing for a minute, which is logged; then the session tries again.

A claim that is lost is left out immediately. A message of a bundle has only the first step; if its single item is
refused, it stays in its bundle, and its attempt is recorded there, which is refused if the bundle is lost. It is then
delivered again, or, if no attempt is left, follows the fourth step. If not even its attempt can be recorded, the
session gives the bundle up and dissolves it.

If the outcome of a portion stays unknown, each lock is read. A lock that is still ours shows that the portion was not
applied, and the release is sent again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import (
    NotCommittedError,
    OutcomeUnknownError,
    QueueError,
    SessionClosedError,
    SessionExpiredError,
    TransactionTooLargeError,
)
from aiozkqueue.layout import LockRecord
from aiozkqueue.queue.state.bundle_hold import BundledClaim
from aiozkqueue.queue.state.hooks import FREE, GONE, LEFT
from aiozkqueue.queue.state.queue_state import QueueState
from aiozkqueue.wording import counted
from aiozkqueue.zookeeper import BadVersionError, Check, NoAuthError, NoNodeError, NotEmptyError, ZooKeeperError
from aiozkqueue.zookeeper import SessionExpiredError as ZooKeeperSessionExpiredError

from .dispositions import LONGEST_SKIP, Disposition
from .end_claims import EndClaims, leave_out_record, weigh

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from aiozkqueue.queue.state.bundle_hold import BundleHold
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.state.hooks import ItemFate, RefusalHandler
    from aiozkqueue.zookeeper import Node, Operation, Result

    from .meter import Meter

log: Final = logging.getLogger(__name__)

#: The last step of a release: only the lock is removed.
PLAIN: Final = Disposition("unlock")
#: Maximum size of a portion in bytes, unless it has a single claim.
PORTION: Final = 256 * 1024
#: Maximum number of reads of one lock, because others may change the locks znode as fast as this session reads it.
MAX_READS: Final = 20
#: Errors that mean that a claim is lost, or its item gone.
_NOT_AS_READ: Final = (NoNodeError, BadVersionError)
#: Errors after which the locks end with the session.
_ENDS_WITH_SESSION: Final = (SessionClosedError, OutcomeUnknownError)
#: Maximum seconds for which this session keeps a claim itself, because its lock uses up budget.
LONGEST_KEPT: Final = 60.0


class ReleaseClaims(EndClaims):
    """Claims that are released, immediately or after a delay, or ended as the policy demands for failed messages."""

    __slots__ = ("_answered", "_largest", "_reads", "_reduced", "_remaining", "_unwakeable", "unsent")

    def __init__(self, transaction_id: str, dispositions: dict[Claim, Disposition], generation: int | None) -> None:
        super().__init__(transaction_id, dispositions, generation)
        self.unsent = False
        self._remaining: dict[Claim, Disposition] = {}
        self._largest = PORTION
        self._reduced: set[Claim] = set()  # claims whose locks alone are to be removed
        self._reads: dict[Claim, int] = {}  # the number of reads of each lock
        self._unwakeable: set[QueueState] = set()  # queues whose wake-up was refused
        self._answered: set[tuple[str, type[ZooKeeperError]]] = set()  # refusals answered once already
        if self.weight > self._largest:
            self._cut()

    # -- portions

    def _cut(self) -> None:
        """Take the next portion from the end.

        The item released last goes to the front, so the oldest message must come last. And the lock of a group stays
        until the portion with its oldest message.
        """
        remaining: dict[Claim, Disposition] = {**self._remaining, **self._dispositions}
        portion: list[Claim] = []
        weight = 0
        for claim in reversed(remaining):
            more = self._weigh(claim, remaining[claim])
            if portion and weight + more > self._largest:
                break
            portion.append(claim)
            weight += more
        self._dispositions = {claim: remaining.pop(claim) for claim in reversed(portion)}
        self._remaining = remaining
        self.weight = weight

    def _weigh(self, claim: Claim, disposition: Disposition) -> int:
        return weigh(claim, PLAIN if claim in self._reduced else disposition)

    def applied(self, results: Sequence[Result] | None, meter: Meter | None) -> None:
        """Settle the claims of this portion, and continue with the next."""
        for claim in [claim for claim, disposition in self._dispositions.items() if _is_stuck(claim, disposition)]:
            claim.attempts = claim.attempts_made
            self._leave_locked(claim, NotCommittedError("it can be neither ended nor stored as a single item"))
        super().applied(results, meter)
        self._dispositions: dict[Claim, Disposition] = {}
        self.unsent = bool(self._remaining)
        if self._remaining:
            self._cut()

    def failed(self, error: BaseException) -> None:
        """Settle the claims if the server has removed the locks; otherwise release them again later."""
        unreleased = [*self._remaining, *self._dispositions]
        if isinstance(error, SessionExpiredError):
            for claim in unreleased:
                claim.settled(LEFT)
        elif unreleased and not isinstance(error, _ENDS_WITH_SESSION):
            claim = unreleased[0]
            text = "queue %s: the locks of %s, the first of them %s, stay until the next try of their release: %s"
            context = claim.log_ids(self._transaction_id)
            log.error(text, claim.state.name, counted(len(unreleased), "message"), claim.id, error, extra=context)
            for claim in unreleased:
                if isinstance(claim, BundledClaim):
                    claim.bundle.lose()
                elif claim.group_lock is not None:
                    claim.group_lock.lose()
                else:
                    claim.state.release_later(claim, LONGEST_KEPT)

    # -- its operations

    _fenced = False

    def _has_hooks(self, claim: Claim) -> bool:
        return claim not in self._reduced

    def _guard(self, claim: Claim, disposition: Disposition) -> Operation:
        return Check(claim.path, claim.version) if claim in self._reduced else super()._guard(claim, disposition)

    def _wakes(self, state: QueueState) -> bool:
        return state not in self._unwakeable

    # -- refusals

    def refused(
        self, claim: Claim | None, handler: RefusalHandler | None, operation: Operation, error: ZooKeeperError
    ) -> Coroutine[object, object, None] | None:
        """Leave out a claim that is lost, or the part of it that is refused; the rest is sent again."""
        if handler is not None:
            return self._refused_attached(claim, handler, operation, error)
        assert claim is not None  # noqa: S101 - an operation of several claims has a handler
        if isinstance(claim, BundledClaim):
            return self._refused_bundled(claim, operation, error)
        if operation.path == claim.state.paths.meta(claim.id):
            return self._refused_record(claim, operation, error)
        return self._refused_single(claim, operation, error)

    def _refused_single(
        self, claim: Claim, operation: Operation, error: ZooKeeperError
    ) -> Coroutine[object, object, None] | None:
        """Leave out a claim whose item or lock has changed since it was read; otherwise leave out the refused part."""
        if claim.group_lock is not None and (operation.path == claim.lock or isinstance(error, _NOT_AS_READ)):
            self._lose(claim)  # the claims of a group share one lock, which is lost, or not known to be ours
            return None
        if not isinstance(error, _NOT_AS_READ):
            return self._step_down(claim, error)
        if operation.path in {claim.path, claim.state.paths.locks}:
            disposition = self._dispositions[claim]
            if disposition.in_doubt:
                return self._resolve_doubt([each for each, end in self._dispositions.items() if end.in_doubt])
            changed = operation.path == claim.path and isinstance(error, BadVersionError)
            return self._remove_lock(claim, gone=not changed and not disposition.left)
        self._leave_out(claim, FREE)  # the client that removed the lock by force may have left the item available
        return None

    def _refused_bundled(
        self, claim: BundledClaim, operation: Operation, error: ZooKeeperError
    ) -> Coroutine[object, object, None] | None:
        """Leave out the claims on a bundle that is lost, or the part of one that is refused."""
        hold = claim.bundle
        if not hold.is_about(operation):
            return self._step_down(claim, error)
        self._lose_bundle(hold)
        return None

    def _lose_bundle(self, hold: BundleHold) -> None:
        """Give up the claims on a bundle; its session dissolves it if the lock is still ours."""
        hold.lose()
        for lost in [
            other
            for other in (*self._dispositions, *self._remaining)
            if isinstance(other, BundledClaim) and other.bundle is hold
        ]:
            self._dispositions.pop(lost, None)
            self._remaining.pop(lost, None)

    def _refused_attached(
        self, claim: Claim | None, handler: RefusalHandler, operation: Operation, error: ZooKeeperError
    ) -> Coroutine[object, object, None] | None:
        """Have the handler of an attached or shared operation repair the cause; otherwise leave the operation out."""
        if (repair := self._repair_once(handler, operation, error)) is not None:
            return repair
        if claim is not None:
            return self._step_down(claim, error)
        assert isinstance(handler, QueueState)  # noqa: S101 - the only other shared operation is its wake-up
        self._unwakeable.add(handler)  # its idle consumers also poll
        return None

    def reduce(self, error: QueueError) -> Coroutine[object, object, None] | None:
        """Reduce each claim of this portion, or the portion."""
        self.repairs = 0
        if isinstance(error, OutcomeUnknownError):
            return self._resolve_doubt(list(self._dispositions))
        if isinstance(error, TransactionTooLargeError) and len(self._dispositions) > 1:
            self._largest = max(1, self.weight // 2)
            self._cut()
            return None
        if not self._dispositions:  # nothing of this portion is left
            if not self._remaining:
                raise error
            self._cut()
            return None
        repairs = [
            repair for claim in list(self._dispositions) if (repair := self._step_down(claim, error)) is not None
        ]
        return _all(repairs) if repairs else None

    def _refused_record(
        self, claim: Claim, operation: Operation, error: ZooKeeperError
    ) -> Coroutine[object, object, None] | None:
        refusal = (operation.path, type(error))
        if refusal in self._answered:  # it changes as fast as we read it: remove the lock whatever the count is
            leave_out_record(claim, error, self._transaction_id)
            return None
        self._answered.add(refusal)
        repair = None
        try:
            repair = self._answer_record(claim, operation, error)
        except QueueError as denied:
            leave_out_record(claim, denied, self._transaction_id)
        return None if repair is None else self._try_repair(repair)

    def _repair_once(
        self, handler: RefusalHandler, operation: Operation, error: ZooKeeperError
    ) -> Coroutine[object, object, None] | None:
        """Have the handler of a refused operation repair the cause, once; None: it cannot, or has tried."""
        refusal = (operation.path, type(error))
        if refusal in self._answered:
            return None
        self._answered.add(refusal)
        try:
            repair = handler.repair(operation, error)
        except QueueError:
            return None
        return _all([]) if repair is None else self._try_repair(repair)

    async def _try_repair(self, repair: Coroutine[object, object, None]) -> None:
        """Run a repair. If it fails, the next refusal of the same kind is not repaired again."""
        try:
            await repair
        except SessionClosedError:
            raise
        except (QueueError, ZooKeeperError) as error:
            log.debug("transaction %s: %s", self._transaction_id, error, extra={"transaction_id": self._transaction_id})

    def _step_down(self, claim: Claim, error: Exception) -> Coroutine[object, object, None] | None:
        """Reduce one claim by one step."""
        disposition = self._dispositions.get(claim)
        if isinstance(claim, BundledClaim):
            self._step_down_bundled(claim, disposition, error)
        elif disposition is None:  # the oldest of its group, which belongs to another portion
            self._lose(claim)
        elif disposition.kind == "unlock":
            self._leave_locked(claim, error)
        elif disposition.kind != "release":
            self._put_aside(claim, error)
        elif claim not in self._reduced and not (disposition.delay and claim.state.dialect is not None):
            self._reduced.add(claim)
            claim.record_refused = True
            text = "queue %s: message %s is released without a record of this attempt, which ZooKeeper refused: %s"
            log.warning(text, claim.state.name, claim.id, error, extra=claim.log_ids(self._transaction_id))
        elif claim.group_lock is not None:
            self._lose(claim, min(disposition.delay, LONGEST_KEPT))
        elif disposition.delay:
            del self._dispositions[claim]
            delay = min(disposition.delay, LONGEST_KEPT)
            text = "queue %s: message %s is kept for %g s without a record, which ZooKeeper refused: %s"
            log.warning(text, claim.state.name, claim.id, delay, error, extra=claim.log_ids(self._transaction_id))
            claim.state.release_later(claim, delay)
        else:
            return self._remove_lock(claim, gone=False)
        return None

    def _step_down_bundled(self, claim: BundledClaim, disposition: Disposition | None, error: Exception) -> None:
        if disposition is None:
            return  # it was given up with its bundle
        if disposition.kind == "unlock":  # not even its attempt can be recorded
            text = "queue %s: bundle %s is given up, because ZooKeeper refuses to release its messages: %s"
            log.warning(text, claim.state.name, claim.bundle.id, error, extra=claim.log_ids(self._transaction_id))
            self._lose_bundle(claim.bundle)
        elif disposition.kind == "release":
            self._keep_bundled(claim, error)
        else:
            self._put_aside(claim, error)

    def _keep_bundled(self, claim: Claim, error: Exception) -> None:
        """Keep a message in its bundle. After its delay, it is at hand for the next taker of this session."""
        disposition = self._dispositions[claim]
        claim.error, delay = disposition.error or claim.error, min(disposition.delay, LONGEST_KEPT)
        self._dispositions[claim] = PLAIN._replace(delay=delay)
        text = "queue %s: message %s is kept for %g s without a record: ZooKeeper refuses its single item: %s"
        log.warning(text, claim.state.name, claim.id, delay, error, extra=claim.log_ids(self._transaction_id))

    def _put_aside(self, claim: Claim, error: Exception) -> None:
        """Delay a message that can be neither ended nor delivered for a long time."""
        self._dispositions[claim] = Disposition("release", delay=LONGEST_SKIP, error=self._dispositions[claim].error)
        remedy = f"delete the znodes below {claim.path} manually (`aiozkqueue doctor` reports them)"
        if not isinstance(error, NotEmptyError):
            remedy = error.advice if isinstance(error, NoAuthError) else "the logs of the servers may show why"
        log.error(
            "queue %s: message %s cannot be removed, and is skipped for %d s: %s; %s",
            claim.state.name,
            claim.id,
            LONGEST_SKIP,
            error,
            remedy,
            extra=claim.log_ids(self._transaction_id),
        )

    def _leave_locked(self, claim: Claim, error: Exception) -> None:
        lock = claim.bundle.lock if isinstance(claim, BundledClaim) else claim.lock
        text = "queue %s: message %s could not be released: %s; its lock %s stays until the next try in %g s"
        context = claim.log_ids(self._transaction_id)
        log.error(text, claim.state.name, claim.id, error, lock, LONGEST_KEPT, extra=context)
        del self._dispositions[claim]  # its lock still counts among this session's locks
        claim.state.release_later(claim, LONGEST_KEPT)

    def _leave_out(self, claim: Claim, fate: ItemFate) -> None:
        del self._dispositions[claim]
        claim.settled(fate)

    def _lose(self, lost: Claim, pause: float = 0.0) -> None:
        """Give up the claims of a group; if its lock is still ours, it is removed in another way, after a pause."""
        assert lost.group_lock is not None  # noqa: S101 - the callers check it
        for dispositions in (self._remaining, self._dispositions):
            for claim in [claim for claim in dispositions if claim.group_lock is lost.group_lock]:
                del dispositions[claim]
        lost.group_lock.lose(pause)

    async def _resolve_doubt(self, claims: Sequence[Claim]) -> None:
        """Leave out those of these claims that have been released; it is not known whether a write was applied."""
        for claim in claims:
            if claim.bundled:
                del self._dispositions[claim]  # its session recovers the bundle
            elif claim.group_lock is None:
                await self._remove_lock(claim, gone=False, again=True)
            elif claim in self._dispositions:
                self._lose(claim, min(self._dispositions[claim].delay, LONGEST_KEPT))

    async def _remove_lock(self, claim: Claim, *, gone: bool, again: bool = False) -> None:
        """Remove only the lock, if it is ours: the item is gone, or does not let this user check.

        ``again``: if the lock is ours, its release has not been applied, and is sent again.

        The lock may belong to another client that claimed a message of the same id after ours was removed by force.
        Ours is ephemeral and has a known time of creation. Another claim of this client would come several changes
        later; the timed lock of a delay, which may have been created in the same millisecond, is not ephemeral.
        """

        def is_ours(lock: Node) -> bool:
            stat = lock.stat
            known = bool(stat.ephemeral_owner) and stat.ctime == claim.claimed_at
            return known and LockRecord.decode(lock.data).owner == claim.owner

        self.repairs = 0  # each claim may need its own reads
        self._reads[claim] = reads = self._reads.get(claim, 0) + 1
        if reads > MAX_READS:
            changes = NotCommittedError(f"the folder of locks changed {MAX_READS} times in the meantime")
            self._leave_locked(claim, changes)
            return
        try:
            versions = await claim.state.read_versions(claim.lock, is_ours, claim.generation)
        except ZooKeeperSessionExpiredError:
            return  # the write is sent again, and then ends with the session
        except NoAuthError as error:
            self._leave_locked(claim, error)
            return
        if versions is None:
            self._leave_out(claim, GONE if gone else FREE)
        elif again:  # also if the lock is the delay: then the release is refused if it was applied
            self._dispositions[claim] = self._dispositions[claim]._replace(in_doubt=False)
        elif (delay := self._dispositions[claim].delay) and claim.state.dialect is not None:
            del self._dispositions[claim]  # the lock is the delay
            claim.state.release_later(claim, delay)
        else:
            self._dispositions[claim] = Disposition("unlock", forced_version=versions[0], left=not gone)


def _is_stuck(claim: Claim, disposition: Disposition) -> bool:
    """Whether a message stays in its bundle although it may not be delivered again."""
    return claim.bundled and disposition.kind == "unlock" and claim.used_up


async def _all(repairs: Sequence[Coroutine[object, object, None]]) -> None:
    for repair in repairs:
        await repair
