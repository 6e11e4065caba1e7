"""Commits: the end of the hold on items, with the puts of the same transaction.

What only gives back is in `releases`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import AttemptRecord, LockRecord
from aiozkqueue.moments import milliseconds_in
from aiozkqueue.queue.runtime.deadline import FOREVER
from aiozkqueue.queue.runtime.log_context import about
from aiozkqueue.queue.state.claim import FREE, GONE, LEFT, Claim
from aiozkqueue.zookeeper import (
    BadVersionError,
    Check,
    Create,
    Delete,
    NodeExistsError,
    NoNodeError,
    SetData,
    new_delete,
)

from .capacity import needs_of, reserve_again
from .dispositions import CONSUME, Disposition, bury, fate, guard, refusal_of, weigh_disposition, write_meta
from .puts import load, note_sequence, stores_of, tally_puts, weigh_puts
from .unique_keys import freed_by
from .write import OPERATION_WEIGHT, AtomicWrite

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence

    from aiozkqueue.queue.claim.group_lock import GroupLock
    from aiozkqueue.queue.runtime.clock import ServerClock
    from aiozkqueue.queue.runtime.meter import Meter
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, Result, ZooKeeperError

    from .alterations import TransactionalAlteration
    from .attached import RefusalHandler
    from .puts import Put

log: Final = logging.getLogger(__name__)


class EndClaims(AtomicWrite):
    """What ends the hold on items: the base of commits and releases."""

    __slots__ = ("_clock", "_dispositions", "_now", "_owners", "_plain", "_puts", "_shared")

    def __init__(
        self,
        transaction_id: str,
        dispositions: dict[Claim, Disposition],
        clock: ServerClock,
        generation: int | None,
        puts: Sequence[Put] = (),
    ) -> None:
        weight = 0
        for claim, disposition in dispositions.items():
            weight += weigh(claim, disposition)
        if puts:
            AtomicWrite.__init__(self, transaction_id, generation, weight + weigh_puts(puts), stores_of(puts))
        else:
            AtomicWrite.__init__(self, transaction_id, generation, weight)
        self._dispositions = dispositions
        self._puts = puts
        self._clock = clock
        self._now: int | None = None
        self._shared = False  # whether the ends of several holds have something in common
        self._plain = True  # whether each hold ends with no more than the end of item and lock
        # Whom each operation was sent for. None: the plain end of each hold, then the plain item of each put.
        self._owners: list[Claim | RefusalHandler] | None = None

    def compose(self, sent: list[Operation]) -> None:
        """End each hold."""
        start = len(sent)
        self._owners = None
        self._plain = True
        for claim, disposition in self._dispositions.items():
            if disposition is not CONSUME or not claim.plain or claim.store.end_hooks:
                self._plain = False
                break
            # The fence comes first: of a claim that is lost, nothing else may be what refuses.
            sent.append(new_delete((claim.path, claim.version)))
            sent.append(new_delete((claim.lock, -1)))
        if not self._plain:
            del sent[start:]
            owners: list[Claim | RefusalHandler] = []
            self._owners = owners
            for claim, disposition in self._dispositions.items():
                self._end(claim, disposition, sent, owners)
            if self._shared:
                self._end_shared(sent, owners)

    def _end(
        self, claim: Claim, disposition: Disposition, sent: list[Operation], owners: list[Claim | RefusalHandler]
    ) -> None:
        """End one hold; what several have in common is left for `_end_shared`."""
        kind = disposition.kind
        if claim.group_lock is not None:
            self._shared = True
            parts = self._end_grouped(claim, disposition)
        elif kind in ("consume", "dead", "remove"):
            parts = self._remove(claim, disposition)
        elif kind == "unlock":
            self._shared = self._shared or disposition.left
            parts = iter(
                ((claim, Check(claim.store.paths.locks, disposition.forced_version)), (claim, Delete(claim.lock)))
            )
        else:
            self._shared = self._shared or not disposition.delay
            parts = self._release(claim, disposition)
        for owner, operation in parts:
            sent.append(operation)
            owners.append(owner)
        for end_hook in claim.store.end_hooks if self._attended(claim) else ():
            for attached_op in end_hook.attached_ops(claim, disposition, self._moment):
                sent.append(attached_op.operation)
                owners.append(attached_op.owner)

    def _end_shared(self, sent: list[Operation], owners: list[Claim | RefusalHandler]) -> None:
        """Say what becomes of the locks of groups, and ring once for all that is given back at once."""
        bells: dict[str, QueueState] = {}
        group_locks: dict[GroupLock, None] = {}
        for claim, disposition in self._dispositions.items():
            if claim.group_lock is not None:
                group_locks[claim.group_lock] = None
            elif disposition.left or (disposition.kind == "release" and not disposition.delay):
                bells[claim.wakeup] = claim.store
        for group_lock in group_locks:
            for owner, operation in group_lock.lock_operations(self._dispositions, self._due):
                sent.append(operation)
                owners.append(owner)
        for wakeup, store in bells.items():
            if not self._rings(store):
                continue
            # A watch on items sees no lock go: this write on their parent is what idle consumers hear.
            for operation in store.wakeup(wakeup, self.transaction_id):
                sent.append(operation)
                owners.append(store)

    def _remove(self, claim: Claim, disposition: Disposition) -> Iterator[tuple[Claim | RefusalHandler, Operation]]:
        """Remove an item for good, or all but what is left of it. The fence comes first."""
        if claim.rest is None:
            yield claim, Delete(claim.path, claim.version)
        else:
            yield claim, SetData(claim.path, claim.rest, claim.version)
        yield claim, Delete(claim.lock)
        if disposition.kind == "dead":
            yield claim.store, bury(claim, disposition.reason, self._moment())
        yield from self._forget(claim)

    def _forget(self, claim: Claim) -> Iterator[tuple[Claim | RefusalHandler, Operation]]:
        """Remove what belongs to a message that is gone."""
        if claim.meta_version is not None and not claim.record_refused:
            yield claim, Delete(claim.store.paths.meta(claim.id))
        if claim.fields is not None and (freed := freed_by(claim)) is not None:
            yield freed.owner, freed.operation

    def applied(self, results: Sequence[Result] | None) -> None:  # noqa: ARG002 - nothing to learn from them
        """Give the claims back, the last first: each goes before those that can be taken now."""
        if self._plain:
            for claim in reversed(self._dispositions):
                claim.settled(GONE)
            return
        self._tell()
        grouped: list[Claim] = []
        for claim, disposition in reversed(self._dispositions.items()):
            if claim.group_lock is not None:
                grouped.append(claim)
                continue
            if disposition.delay and claim.store.dialect is not None:
                claim.version += 1
                claim.store.keep(claim, disposition.delay)
                continue
            if disposition.kind != "release":
                claim.settled(FREE if claim.rest is not None or disposition.left else GONE)
            elif disposition.delay:
                claim.settled(LEFT)
                claim.store.retry_at(self._due(disposition), claim.id)
            else:
                claim.settled(FREE)
        for claim in reversed(grouped):
            if claim.group_lock is not None:
                claim.group_lock.ended(claim, self._dispositions[claim], self._due)

    def _tell(self) -> None:
        """Log what nobody is handed any more though it was not done: an operator should hear of it."""
        for claim, disposition in self._dispositions.items():
            if disposition.reason:
                log.info(
                    "queue %s: message %s is %s: %r",  # one line, whatever a payload has brought into it
                    claim.store.name,
                    claim.id,
                    fate(disposition),
                    disposition.reason,
                    extra=about(claim, self.transaction_id),
                )

    def tally(self, meter: Meter) -> None:
        """Tell how the holds have ended."""
        for claim, disposition in self._dispositions.items():
            meter.ended(claim, disposition)

    def over(self) -> None:
        """The server has removed the locks."""
        for claim in self._dispositions:
            claim.settled(LEFT)

    def _owner(self, index: int) -> Claim | RefusalHandler:
        """Return whom an operation was sent for."""
        if self._owners is None:
            return [*self._owners_so_far(), *(put.store for put in self._puts)][index]
        return self._owners[index]

    def _owners_so_far(self) -> list[Claim | RefusalHandler]:
        """Return whom each operation was sent for, but for what is put."""
        if self._owners is None:
            return [claim for claim in self._dispositions for _ in ("item", "lock")]
        return self._owners

    def _repair(
        self, owner: RefusalHandler, operation: Operation, error: ZooKeeperError
    ) -> Coroutine[object, object, None] | None:
        """Let the owner of an operation mend what refused it. No copy can be applied any more: a new time is taken."""
        self._now = None
        return owner.repair(operation, error)

    # -- what a release may have to do without

    def _attended(self, claim: Claim) -> bool:  # noqa: ARG002 - all are
        """Whether the queue's features add to the end of this hold."""
        return True

    def _guard(self, claim: Claim, disposition: Disposition) -> Operation:
        """Assert that the claim is still ours."""
        return guard(claim, disposition)

    def _rings(self, store: QueueState) -> bool:  # noqa: ARG002 - all do
        """Whether idle consumers of a queue are told."""
        return True

    def _answer_record(
        self, claim: Claim, operation: Operation, error: ZooKeeperError
    ) -> Coroutine[object, object, None] | None:
        """Go by what is known now of a record of attempts, or go on without it: the lock is ours all the same."""
        if isinstance(error, NoNodeError):
            if isinstance(operation, Create):  # the folder of the records is missing
                return self._repair(claim.store, operation, error)
            claim.meta_version = None
        elif isinstance(error, NodeExistsError | BadVersionError):
            claim.meta_version = -1  # somebody tampered with the count
        else:
            leave_out_record(claim, error, self.transaction_id)
        return None

    def _release(self, claim: Claim, disposition: Disposition) -> Iterator[tuple[Claim | RefusalHandler, Operation]]:
        if disposition.delay and claim.store.dialect is not None:
            yield claim, SetData(claim.path, claim.raw, claim.version)
            yield from self._count(claim, disposition, None)
            return
        paths = claim.store.paths
        yield claim, self._guard(claim, disposition)
        yield claim, Delete(claim.lock)
        due = self._due(disposition) if disposition.delay else None
        if due is not None:
            yield claim, Create(claim.lock, LockRecord(claim.id, claim.owner, due, disposition.leased).encode())
            yield claim.store, Create(paths.due_node(due, claim.id), claim.place.encode())
        yield from self._count(claim, disposition, due)

    def _count(self, claim: Claim, disposition: Disposition, due: int | None) -> Iterator[tuple[Claim, Operation]]:
        """Record the attempt that a release ends, or take it back."""
        if claim.record_refused:
            return
        if claim.handed:
            record = AttemptRecord(claim.attempt, claim.id, disposition.error, due, claim.retries)
            yield claim, write_meta(claim, record)
        elif claim.recorded:
            # Counted, but nobody has seen it: what was never handed over costs no attempt.
            yield claim, write_meta(claim, AttemptRecord(claim.attempts - 1, claim.id, retries=claim.retries))

    def _end_grouped(
        self, claim: Claim, disposition: Disposition
    ) -> Iterator[tuple[Claim | RefusalHandler, Operation]]:
        """End the hold on one message of a group; what becomes of the group's lock is for the tenure to say."""
        if disposition.kind == "release":
            yield claim, self._guard(claim, disposition)
            yield from self._count(claim, disposition, self._due(disposition) if disposition.delay else None)
            return
        yield claim, Delete(claim.path, claim.version)
        if disposition.kind == "dead":
            yield claim.store, bury(claim, disposition.reason, self._moment())
        yield from self._forget(claim)

    def _due(self, disposition: Disposition) -> int:
        return self._moment() + max(1, milliseconds_in(disposition.delay))

    def _moment(self) -> int:
        """ZooKeeper's time when this was first sent: every repetition says the same."""
        if self._now is None:
            self._now = self._clock.now()
        return self._now


class CommitWrite(EndClaims):
    """The commit of a transaction: takes, puts, rejects and releases in one."""

    __slots__ = ("_beside",)

    def __init__(
        self,
        transaction_id: str,
        dispositions: dict[Claim, Disposition],
        puts: Sequence[Put],
        clock: ServerClock,
        generation: int | None,
        *,
        beside: Sequence[TransactionalAlteration] = (),
    ) -> None:
        EndClaims.__init__(self, transaction_id, dispositions, clock, generation, puts)
        self.learns = bool(puts)  # the sequences of the items
        self._beside = beside
        for one in beside:
            self.grow(one.weight)

    def compose(self, sent: list[Operation]) -> None:
        """End the holds, alter what is to be altered, then create the items."""
        EndClaims.compose(self, sent)
        if self._beside:
            owners = self._owners = self._owners_so_far()
            for one in self._beside:
                for owner, operation in one.operations(self._clock):
                    sent.append(operation)
                    owners.append(owner)
        if self._puts:
            self._puts, of_puts = load(self, self._puts, sent)
            if of_puts is not None:
                self._owners = [*self._owners_so_far(), *of_puts]
            elif self._owners is not None:
                self._owners += [put.store for put in self._puts]

    def applied(self, results: Sequence[Result] | None) -> None:
        """Give the claims back, and see how far the lanes' counters have come."""
        EndClaims.applied(self, results)
        if self._puts:
            note_sequence(self._puts, results)

    def tally(self, meter: Meter) -> None:
        """Tell how the holds have ended, and of the items."""
        super().tally(meter)
        tally_puts(self._puts, meter)

    def refused(
        self, index: int, operation: Operation, error: ZooKeeperError
    ) -> Coroutine[object, object, None] | None:
        """A claim that is lost fails the commit; a queue that has changed is opened again."""
        owner = self._owner(index)
        if isinstance(owner, Claim):
            if operation.path == owner.store.paths.meta(owner.id):
                return self._answer_record(owner, operation, error)
            raise refusal_of(owner, operation, error)
        return self._repair(owner, operation, error)

    async def reserve_again(self) -> None:
        """Wait for room."""
        await reserve_again(self, needs_of(self._puts, self._dispositions, self._beside), FOREVER)


def weigh(claim: Claim, disposition: Disposition) -> int:
    """About how many bytes the end of a hold takes in a multi, with what the queue's features add."""
    weight = 3 * OPERATION_WEIGHT if disposition is CONSUME else weigh_disposition(claim, disposition)
    if claim.store.end_hooks:
        weight += sum(end_hook.weight(claim, disposition) for end_hook in claim.store.end_hooks)
    return weight


def leave_out_record(claim: Claim, error: Exception, transaction_id: str) -> None:
    """Send nothing of a claim's record of attempts any more: somebody else's znode must not hold up the message."""
    claim.record_refused = True
    log.warning(
        "queue %s: the record of attempts at message %s cannot be changed, and stays as it is: %s; remove %s, or what "
        "lies below it, or let this user write to it",
        claim.store.name,
        claim.id,
        error,
        claim.store.paths.meta(claim.id),
        extra=about(claim, transaction_id),
    )
