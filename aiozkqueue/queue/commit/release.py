"""Claims given back. A release always succeeds: what ZooKeeper refuses of it is left out, down to the lock alone.

It is sent in portions, each of which fits into one request. A refusal concerns one claim, and costs it one step of the
way down, so that their number is bounded:

1. as decided, with the record of the attempt, the retry's date, the dead letter;
2. ``[check item, delete lock]``, with the timed lock of a delay; where even that is refused, this session keeps the
   claim for the delay, and then does without;
3. ``[check folder of locks, delete lock]``, after a look that the lock is ours;
4. nothing: the lock stays until the session ends, and the log says so.

A claim that is lost is left out at once.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
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
from aiozkqueue.queue.runtime.log_context import about
from aiozkqueue.queue.state.claim import FREE, GONE, LEFT, Claim
from aiozkqueue.queue.state.queue_state import QueueState
from aiozkqueue.zookeeper import BadVersionError, Check, NoAuthError, NoNodeError, ZooKeeperError
from aiozkqueue.zookeeper import SessionExpiredError as ZooKeeperSessionExpiredError

from .dispositions import ASIDE, Disposition
from .held import EndClaims, leave_out_record, weigh

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from aiozkqueue.queue.runtime.clock import ServerClock
    from aiozkqueue.queue.state.claim import Fate
    from aiozkqueue.zookeeper import Node, Operation, Result

    from .attached import RefusalHandler

log: Final = logging.getLogger(__name__)

#: What of a release is asked for in the end: that the lock goes.
PLAIN: Final = Disposition("unlock")
#: What one portion takes at the most, bytes, unless a single claim takes more.
PORTION: Final = 256 * 1024
#: How often it is looked up whose one lock is: somebody may write to the folder of locks as fast as we look.
LOOKS: Final = 20
#: What tells that a claim is lost, or its item gone.
_NOT_AS_READ: Final = (NoNodeError, BadVersionError)
#: What a release fails with when its session is over, or is being closed: the locks go with it.
_ENDS_WITH_SESSION: Final = (SessionExpiredError, SessionClosedError, OutcomeUnknownError)
#: The longest time for which this session keeps a claim itself, since a lock takes of what it may lock, seconds.
LONGEST_KEPT: Final = 60.0


class ReleaseWrite(EndClaims):
    """Claims given back, each at once or after a delay, or ended as their policy says of what has failed."""

    __slots__ = ("_answered", "_largest", "_lessened", "_looks", "_rest", "_shared_from", "_silent", "_spans")

    def __init__(
        self, transaction_id: str, dispositions: dict[Claim, Disposition], clock: ServerClock, generation: int | None
    ) -> None:
        super().__init__(transaction_id, dispositions, clock, generation)
        self._rest: dict[Claim, Disposition] = {}
        self._largest = PORTION
        self._lessened: set[Claim] = set()  # claims of which no more is asked than that the lock goes
        self._looks: dict[Claim, int] = {}  # whose lock it is, has been looked up so often
        self._silent: set[QueueState] = set()  # queues whose bells cannot be rung
        self._answered: set[tuple[str, type[ZooKeeperError]]] = set()  # what has been mended, in vain if it comes again
        self._spans: list[tuple[int, Claim]] = []  # where the operations of each claim begin
        self._shared_from = 0  # where those begin that several share
        if self.weight > self._largest:
            self._cut()

    # -- portions

    def _cut(self) -> None:
        """Take the next portion from the end.

        What is given back last goes before all else, so the oldest message must be last. And as long as the oldest of
        a group is not among them, its lock stays.
        """
        waiting: dict[Claim, Disposition] = {**self._rest, **self._dispositions}
        portion: list[Claim] = []
        weight = 0
        for claim in reversed(waiting):
            more = self._weigh(claim, waiting[claim])
            if portion and weight + more > self._largest:
                break
            portion.append(claim)
            weight += more
        self._dispositions = {claim: waiting.pop(claim) for claim in reversed(portion)}
        self._rest = waiting
        self.weight = weight
        self._now = None

    def _weigh(self, claim: Claim, disposition: Disposition) -> int:
        return weigh(claim, PLAIN if claim in self._lessened else disposition)

    def succeed(self, results: Sequence[Result] | None) -> None:
        """Go on with the next portion, or settle."""
        if not self._rest or self.settled:
            super().succeed(results)
            return
        self.applied(results)
        self._dispositions: dict[Claim, Disposition] = {}
        self._cut()
        self.repairs = 0
        assert self.committer is not None  # noqa: S101 - it has sent this
        self.committer.resubmit(self)

    def over(self) -> None:
        """The server has removed the locks."""
        for claim in [*self._rest, *self._dispositions]:
            claim.settled(LEFT)

    def fail(self, error: BaseException) -> None:
        """Tell of what nobody can give back any more; what ends with the session needs no telling."""
        left = [*self._rest, *self._dispositions]
        if left and not self.settled and not isinstance(error, _ENDS_WITH_SESSION):
            claim = left[0]
            log.error(
                "queue %s: %d messages, the first of them %s, could not be given back, and stay locked until this "
                "session ends: %s",
                claim.store.name,
                len(left),
                claim.id,
                error,
                extra=about(claim, self.transaction_id),
            )
        super().fail(error)

    # -- what is sent

    def compose(self, sent: list[Operation]) -> None:
        """End each hold of this portion."""
        self._spans = []
        super().compose(sent)
        if self._owners is None:
            self._shared_from = len(sent)

    def _end(
        self, claim: Claim, disposition: Disposition, sent: list[Operation], owners: list[Claim | RefusalHandler]
    ) -> None:
        self._spans.append((len(owners), claim))
        super()._end(claim, disposition, sent, owners)

    def _end_shared(self, sent: list[Operation], owners: list[Claim | RefusalHandler]) -> None:
        self._shared_from = len(owners)
        super()._end_shared(sent, owners)

    def _attended(self, claim: Claim) -> bool:
        return claim not in self._lessened

    def _guard(self, claim: Claim, disposition: Disposition) -> Operation:
        return Check(claim.path, claim.version) if claim in self._lessened else super()._guard(claim, disposition)

    def _rings(self, store: QueueState) -> bool:
        return store not in self._silent

    # -- what is refused

    def refused(
        self, index: int, operation: Operation, error: ZooKeeperError
    ) -> Coroutine[object, object, None] | None:
        """Leave out what is ours no more, or what of it is refused; the rest goes again."""
        claim = self._owner(index)
        if not isinstance(claim, Claim):
            return self._refused_beside(claim, index, operation, error)
        if operation.path == claim.store.paths.meta(claim.id):
            return self._refused_record(claim, operation, error)
        if claim.group_lock is not None and (operation.path == claim.lock or isinstance(error, _NOT_AS_READ)):
            self._lose(claim)  # one lock for all of them: it is ours no more, or nothing can be known of it
            return None
        if not isinstance(error, _NOT_AS_READ):
            return self._step_down(claim, error)
        item_gone = operation.path == claim.path and isinstance(error, NoNodeError)
        if item_gone or operation.path == claim.store.paths.locks:
            return self._look(claim, gone=not self._dispositions[claim].left)
        self._leave_out(claim, FREE)  # whoever forced it open may have left it free
        return None

    def _refused_beside(
        self, owner: RefusalHandler, index: int, operation: Operation, error: ZooKeeperError
    ) -> Coroutine[object, object, None] | None:
        """Have the owner mend what goes with a claim's end, or with several; else it is left out."""
        if (mending := self._mend_once(owner, operation, error)) is not None:
            return mending
        if (claim := self._claim_at(index, operation.path)) is not None:
            return self._step_down(claim, error)
        assert isinstance(owner, QueueState)  # noqa: S101 - what several claims share besides is its bell
        self._silent.add(owner)  # who is idle finds what it misses by looking
        return None

    def retreat(self, error: QueueError) -> Coroutine[object, object, None] | None:
        """Ask for less of each claim of this portion, or of a smaller one."""
        self.repairs = 0
        if isinstance(error, OutcomeUnknownError):
            return self._look_at_all()
        if isinstance(error, TransactionTooLargeError) and len(self._dispositions) > 1:
            self._largest = max(1, self.weight // 2)
            self._cut()
            return None
        repairs = [
            mending for claim in list(self._dispositions) if (mending := self._step_down(claim, error)) is not None
        ]
        return _all(repairs) if repairs else None

    def _claim_at(self, index: int, path: str) -> Claim | None:
        """Return the claim that an operation was sent for; None for one that several share."""
        if index >= self._shared_from:
            return next(
                (one for one in self._dispositions if one.group_lock is not None and path.endswith(f"-{one.id}")), None
            )
        at = bisect_right(self._spans, index, key=lambda span: span[0]) - 1
        return self._spans[at][1]

    def _refused_record(
        self, claim: Claim, operation: Operation, error: ZooKeeperError
    ) -> Coroutine[object, object, None] | None:
        once = (operation.path, type(error))
        if once in self._answered:  # it changes as fast as we look: the lock must go whatever the count says
            leave_out_record(claim, error, self.transaction_id)
            return None
        self._answered.add(once)
        mending = None
        try:
            mending = self._answer_record(claim, operation, error)
        except QueueError as denied:
            leave_out_record(claim, denied, self.transaction_id)
        return None if mending is None else self._tried(mending)

    def _mend_once(
        self, owner: RefusalHandler, operation: Operation, error: ZooKeeperError
    ) -> Coroutine[object, object, None] | None:
        """Let the owner of an operation mend what refused it, unless it has tried; None: it cannot."""
        once = (operation.path, type(error))
        if once in self._answered:
            return None
        self._answered.add(once)
        try:
            mending = self._repair(owner, operation, error)
        except QueueError:
            return None
        return _all([]) if mending is None else self._tried(mending)

    async def _tried(self, mending: Coroutine[object, object, None]) -> None:
        """Mend; where that fails, the next refusal tells, and is not mended again."""
        try:
            await mending
        except SessionClosedError:
            raise
        except (QueueError, ZooKeeperError) as error:
            log.debug("transaction %s: %s", self.transaction_id, error, extra={"transaction_id": self.transaction_id})

    def _step_down(self, claim: Claim, error: Exception) -> Coroutine[object, object, None] | None:
        """Ask for less of one claim."""
        disposition = self._dispositions.get(claim)
        if disposition is None:  # the oldest of its group, which another portion gives back
            self._lose(claim)
        elif disposition.kind == "unlock":
            self._leave_locked(claim, error)
        elif disposition.kind != "release":
            self._put_aside(claim, error)
        elif claim not in self._lessened and not (disposition.delay and claim.store.dialect is not None):
            self._lessened.add(claim)
            claim.record_refused = True
            log.warning(
                "queue %s: message %s is given back without a trace of this attempt, which ZooKeeper refused: %s",
                claim.store.name,
                claim.id,
                error,
                extra=about(claim, self.transaction_id),
            )
        elif claim.group_lock is not None:
            self._lose(claim)
        elif disposition.delay:
            del self._dispositions[claim]
            claim.store.keep(claim, min(disposition.delay, LONGEST_KEPT))
        else:
            return self._look(claim, gone=False)
        return None

    def _put_aside(self, claim: Claim, error: Exception) -> None:
        """Leave a message alone for long that can be neither ended nor handed over."""
        self._dispositions[claim] = Disposition("release", delay=ASIDE)
        log.error(
            "queue %s: message %s cannot be removed, and is left alone for %d s: %s; delete by hand what is in the way "
            "of %s (`aiozkqueue doctor` tells of it)",
            claim.store.name,
            claim.id,
            ASIDE,
            error,
            claim.path,
            extra=about(claim, self.transaction_id),
        )

    def _leave_locked(self, claim: Claim, error: Exception) -> None:
        log.error(
            "queue %s: message %s could not be given back: %s; its lock %s stays until this session ends",
            claim.store.name,
            claim.id,
            error,
            claim.lock,
            extra=about(claim, self.transaction_id),
        )
        del self._dispositions[claim]  # it goes on to count among this session's locks

    def _leave_out(self, claim: Claim, fate: Fate) -> None:
        del self._dispositions[claim]
        claim.settled(fate)

    def _lose(self, lost: Claim) -> None:
        """Give up the claims of a group; its lock is removed in another way if it is ours still."""
        assert lost.group_lock is not None  # noqa: S101 - its callers look
        self._rest = {claim: one for claim, one in self._rest.items() if claim.group_lock is not lost.group_lock}
        self._dispositions = {
            claim: one for claim, one in self._dispositions.items() if claim.group_lock is not lost.group_lock
        }
        lost.group_lock.lose()

    async def _look_at_all(self) -> None:
        """Whether this portion has been applied is not known: remove what locks are still there."""
        for claim in list(self._dispositions):
            if claim.group_lock is None:
                await self._look(claim, gone=False)
            elif claim in self._dispositions:
                self._lose(claim)

    async def _look(self, claim: Claim, *, gone: bool) -> None:
        """Remove the lock alone, if it is ours: there is no item that could tell, or it does not let us look.

        The lock may be another's, who came by a message of the same id after ours was forced open. Ours is known by
        when it was made: another that this client made has followed on several changes.
        """

        def is_ours(lock: Node) -> bool:
            return lock.stat.ctime == claim.since and LockRecord.decode(lock.data).owner == claim.owner

        self.repairs = 0  # there may be as many looks as claims
        self._looks[claim] = looks = self._looks.get(claim, 0) + 1
        if looks > LOOKS:
            self._leave_locked(claim, NotCommittedError(f"the folder of locks has changed {LOOKS} times meanwhile"))
            return
        try:
            forced_version = await claim.store.unforced(claim.lock, is_ours, claim.generation)
        except ZooKeeperSessionExpiredError:
            return  # so it ends, when it goes again
        except NoAuthError as error:
            self._leave_locked(claim, error)
            return
        if forced_version is None:
            self._leave_out(claim, GONE if gone else FREE)
        else:
            self._dispositions[claim] = Disposition("unlock", forced_version=forced_version, left=not gone)


async def _all(repairs: Sequence[Coroutine[object, object, None]]) -> None:
    for mending in repairs:
        await mending
