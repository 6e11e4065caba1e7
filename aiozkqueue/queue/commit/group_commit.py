"""The group committer: it applies all-or-nothing writes exactly once, despite connection losses and session expiry.

Writes that are ready at the same moment share a multi, which is sent under a commit slot (see `slot`). If one of them
causes a refusal, it is taken out, and the others are sent again without it. From then on it is sent in separate
requests, a limited number of times, so it delays no other write.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import count
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import (
    AccessDeniedError,
    NotCommittedError,
    SessionClosedError,
    TransactionTooLargeError,
)
from aiozkqueue.runtime.acl_errors import right_denied
from aiozkqueue.runtime.clock import TRUSTED
from aiozkqueue.runtime.sizes import message_limit, too_large
from aiozkqueue.zookeeper import (
    AuthFailedError,
    BadVersionError,
    ClientClosedError,
    NoAuthError,
    RequestTooLargeError,
    ServerError,
    State,
    ZooKeeperError,
)

from .failures import CLOSED, CLOSED_UNANSWERED, expired, undecidable
from .multi import FEW, PendingMulti, UnsentWrites, separate
from .repairs import RepairedTogether, Repairs
from .slot import MultiFate, RefusedError, Slot
from .write import SharedOps

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from aiozkqueue.errors import QueueError
    from aiozkqueue.layout import ClientPaths, IdSource
    from aiozkqueue.queue.commit.meter import Meter
    from aiozkqueue.queue.state.hooks import RefusalHandler
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.runtime.clock import ServerClock
    from aiozkqueue.runtime.tasks import TaskOwner
    from aiozkqueue.zookeeper import Operation, Result, ZooKeeper

    from .multi import Contribution
    from .slot import Sent
    from .write import AtomicWrite

log: Final = logging.getLogger(__name__)

SLOTS = 4
#: This many writes are sent without waiting for the end of the event loop's tick. Callers that were answered together
#: commit together again; in a single multi, the server would idle while we compose it, and we while it is applied.
FULL_GROUP = 64
#: Bytes of a single write that make a full group.
FULL_WEIGHT = 32 * 1024


class GroupCommitter:
    """Sends a session's writes: several multis at once, each under its own commit slot."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        paths: ClientPaths,
        tasks: TaskOwner,
        clock: ServerClock,
        *,
        ids: IdSource,
        about: bytes,
    ) -> None:
        self._zookeeper = zookeeper
        self._paths = paths
        self._ids = ids
        self._tasks = tasks
        self._clock = clock
        self._about = about
        self._unsent = UnsentWrites()
        self._numbers = count()
        self._repairs = Repairs(tasks, self.resubmit)
        self._idle: list[tuple[Slot, asyncio.Future[PendingMulti | None]]] = []
        self._woken = False
        self._unsettled = 0
        self._large_batches = count()
        self._drained: asyncio.Event = asyncio.Event()
        self._drained.set()
        self._closed = False
        self.meter: Meter | None = None
        """The meter of applied writes; None: metrics are off."""
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()

    @property
    def grace(self) -> float:
        """Seconds that a cancelled caller waits for its write: one session timeout."""
        return self._zookeeper.session_timeout

    def start(self) -> None:
        """Start one task per slot."""
        for number in range(SLOTS):
            slot = Slot(self._zookeeper, self._paths, number, self._clock, self._about)
            self._tasks.spawn(self._serve, slot, name=f"commit slot {number}")

    def submit(self, atomic_write: AtomicWrite, contribution: Contribution | None = None) -> None:
        """Accept a write; the committer is responsible for its outcome from now on.

        ``contribution`` describes a write without a part, as a member of a shared write.

        Raises:
            SessionClosedError: the session has been closed.
        """
        if self._closed:
            raise SessionClosedError(CLOSED)
        atomic_write.committer = self
        atomic_write.number = next(self._numbers)
        if not self._unsettled:
            self._drained.clear()
        self._unsettled += 1
        unsent = self._unsent
        if contribution is None:
            unsent.add(atomic_write)
            weight = atomic_write.part.weight
        else:
            weight = unsent.share(atomic_write, contribution)
        if self._idle and (weight >= FULL_WEIGHT or unsent.arrived >= FULL_GROUP):
            self._send_now()
        elif not self._woken:
            self._wake()

    def resubmit(self, atomic_write: AtomicWrite) -> None:
        """Send the rest of a partly applied write."""
        self._requeue([atomic_write])
        self._wake()

    def withdraw(self, atomic_write: AtomicWrite) -> bool:
        """Remove a write that is not in progress, for its submitter to fail; return False if it is in progress."""
        return self._repairs.withdraw(atomic_write) or self._unsent.remove(atomic_write)

    async def drain(self) -> None:
        """Wait until every write is settled."""
        await self._drained.wait()

    def close(self) -> None:
        """Refuse new writes and fail the remaining ones; the fate of writes already sent stays unknown."""
        self._closed = True
        self._fail_unsent()

    def count_settled(self, number: int) -> None:
        """Count submitted writes that are settled."""
        self._unsettled -= number
        if not self._unsettled:
            self._drained.set()

    def _requeue(self, writes: list[AtomicWrite]) -> None:
        """Put writes back in front of those submitted later, or fail them if the committer is closed."""
        for atomic_write in writes:
            self._unsent.restore(atomic_write)
        if self._closed:
            self._fail_unsent()

    def _fail_unsent(self) -> None:
        while (atomic_write := self._unsent.pop()) is not None:
            atomic_write.fail(SessionClosedError(f"{CLOSED} before this was sent; nothing was applied"))

    def _wake(self) -> None:
        free = self._free_slot()
        if free is not None:
            free[1].set_result(None)
            self._woken = True

    def _free_slot(self) -> tuple[Slot, asyncio.Future[PendingMulti | None]] | None:
        """Return the idle slot used last, so that sequential commits do not create further slots."""
        while self._idle:
            free = self._idle.pop()
            if not free[1].done():  # otherwise its task is being cancelled: the session is closing
                return free
        return None

    def _send_now(self) -> None:
        """Send a group immediately, before the end of the loop's tick, if possible."""
        free = self._free_slot()
        if free is None:
            return
        slot, assigned = free
        if not self._can_send(slot, self._unsent.ready):  # the writes stay where they can be withdrawn
            assigned.set_result(None)
            self._woken = True
            return
        generation = self._zookeeper.generation
        batch = self._next_batch()
        if not batch:  # all wait for chains
            self._idle.append(free)
            return
        pending = PendingMulti(batch, self._clock, self._ids)
        assigned.set_result(pending)
        if {member.part.generation for member in batch} <= {generation, None}:
            pending.send(slot, generation, self._large_batches)
        # Otherwise the slot's task sends it, without the writes of an earlier session.

    async def _serve(self, slot: Slot) -> None:
        while True:
            pending = await self._next_multi(slot)
            batch = pending.batch
            chains = {chain for atomic_write in batch for chain in atomic_write.part.chains}
            try:
                await self._settle(slot, pending)
            except ZooKeeperError as error:
                self._fail_after(error, batch, slot)
            except BaseException as error:
                closed = isinstance(error, asyncio.CancelledError)
                self._fail_unknown(batch, CLOSED_UNANSWERED if closed else f"the session has failed ({error!r})")
                raise
            finally:
                self._unsent.free(chains)  # this slot sends the writes that are ready again

    async def _next_multi(self, slot: Slot) -> PendingMulti:
        while True:
            if self._unsent.ready:
                failure = await self._make_ready(slot)
                if batch := self._next_batch():
                    pending = PendingMulti(batch, self._clock, self._ids)
                    pending.failure = failure
                    return pending
            assigned: asyncio.Future[PendingMulti | None] = self.loop.create_future()
            self._idle.append((slot, assigned))
            try:
                assignment = await assigned
            except asyncio.CancelledError:
                if assigned.done() and not assigned.cancelled() and (assignment := assigned.result()) is not None:
                    self._fail_unknown(assignment.batch, CLOSED_UNANSWERED)  # it was assigned at the same moment
                raise
            if assignment is not None:
                return assignment
            self._woken = False

    def _can_send(self, slot: Slot, writes: Collection[AtomicWrite]) -> bool:
        """Whether a multi of these writes can be sent under a slot now."""
        zookeeper = self._zookeeper
        can_send = slot.ready and zookeeper.state is State.CONNECTED and not zookeeper.throttled
        return can_send and not self._lacks_time(writes)

    def _lacks_time(self, writes: Collection[AtomicWrite]) -> bool:
        """Whether ZooKeeper's time must be measured before these writes can be composed."""
        if len(writes) <= FEW and not any(write.part.needs_time for write in writes):
            return False  # the usual case; the clock would take longer to answer
        clock = self._clock
        measured = clock.bounded and clock.sampled_within(TRUSTED)
        return not measured and any(write.part.needs_time for write in writes)

    async def _make_ready(self, slot: Slot) -> ZooKeeperError | None:
        """Wait until a multi can be sent under a slot; return the error if none ever can.

        No write is taken in the meantime, so each can be withdrawn.
        """
        while not self._can_send(slot, self._unsent.ready):
            try:
                generation = await self._zookeeper.wait_connected()
                if not slot.ready:
                    await slot.prepare(generation)
                elif self._lacks_time(self._unsent.ready):
                    await slot.sample_clock(generation)
            except ZooKeeperError as error:
                return error
        return None

    def _fail_after(self, error: ZooKeeperError, batch: list[AtomicWrite], slot: Slot) -> None:
        """Fail the writes of a batch that is given up: access is refused, or the outcome can no longer be known."""
        separate(batch)
        for atomic_write in batch:
            failure: QueueError
            if isinstance(error, NoAuthError):
                right = f"write below {error.path or slot.path}, where each client has its commit slots"
                failure = right_denied(atomic_write.part.changed or slot.path, right, error)
            elif isinstance(error, AuthFailedError):
                failure = AccessDeniedError(f"{slot.path}: {error}")
                failure.__cause__ = error
            else:
                log.warning(
                    "transaction %s: whether it was applied can no longer be determined: %s: %s",
                    atomic_write.transaction_id,
                    slot.path,
                    error,
                    extra={"transaction_id": atomic_write.transaction_id},
                )
                failure = undecidable(atomic_write.transaction_id, f"the session was closed or failed ({error})")
            atomic_write.fail(failure)

    def _fail_unknown(self, batch: list[AtomicWrite], why: str) -> None:
        """Fail writes whose fate can no longer be determined."""
        separate(batch)
        for atomic_write in batch:
            atomic_write.fail(undecidable(atomic_write.transaction_id, why))

    def _fail_unsendable(self, batch: list[AtomicWrite], error: ZooKeeperError) -> None:
        """Fail writes that were never sent, and never can be."""
        if isinstance(error, AuthFailedError | NoAuthError):
            raise error
        separate(batch)
        failure = SessionClosedError if isinstance(error, ClientClosedError) else NotCommittedError
        for atomic_write in batch:
            atomic_write.fail(failure(f"{error}; nothing was applied"))
        batch.clear()

    def _next_batch(self) -> list[AtomicWrite]:
        batch = self._unsent.next_batch(self._zookeeper.max_request)
        if self._unsent.ready:
            self._wake()  # there is work for another slot
        return batch

    async def _settle(self, slot: Slot, pending: PendingMulti) -> None:
        """Settle every write of a batch, or begin its repair."""
        batch = pending.batch
        if pending.failure is not None:
            self._fail_unsendable(batch, pending.failure)
        while batch:
            try:
                sending = pending.sending
                if sending is None:
                    if not self._can_send(slot, batch):  # none of these is in progress: they can be withdrawn again
                        separate(batch)
                        self._requeue(batch)
                        return
                    generation = self._zookeeper.generation
                    if self._leave_out_expired(batch, generation):
                        pending = PendingMulti(batch, self._clock, self._ids)
                        continue
                    sending = pending.send(slot, generation, self._large_batches)
                sent = await slot.finish(sending)
            except RefusedError as refusal:
                self._refused(batch, pending, refusal)
            except (RequestTooLargeError, ServerError) as error:
                separate(batch)
                self._refused_whole(batch, error)
            else:
                self._conclude(batch, pending, sent)
            separate(batch)
            if batch:  # the writes that neither caused a refusal nor were applied are sent again
                pending = PendingMulti(batch, self._clock, self._ids)

    def _refused(self, batch: list[AtomicWrite], pending: PendingMulti, refusal: RefusedError) -> None:
        """Have the refusal of an operation repaired for each write that depends on it; the others are sent again."""
        index, error = refusal.index, refusal.error
        operation = pending.composition.operations[index]
        for each, start, end in zip(
            pending.writes, pending.starts, [*pending.starts[1:], pending.shared_start], strict=True
        ):
            each.operation_count = end - start
        separate(batch)
        if index < len(pending.queues):
            further = pending.checks_after(index) if isinstance(error, BadVersionError) else ()
            self._reopen(batch, pending.queues[index], operation, error, further)
            return
        member, handler = pending.refused_by(index)
        concerned = {} if isinstance(handler, SharedOps) else pending.affected_writes(index, error)
        if missing := pending.lanes_missing_from(index, error):
            (state, _), *further = missing
            self._reopen(batch, state, operation, error, further)
        elif isinstance(handler, SharedOps):
            for member, its_handler in handler.handlers():
                if member in batch:
                    self._repairs.begin(batch, member, its_handler, operation, error)
        elif len(concerned) > 1:
            for each, (its_handler, its_operation) in concerned.items():
                self._repairs.begin(batch, each, its_handler, its_operation, error)
        else:
            self._answer_refusal(batch, member, concerned[member][0], operation, error)

    def _reopen(
        self,
        batch: list[AtomicWrite],
        state: QueueState,
        operation: Operation,
        error: ZooKeeperError,
        further: Sequence[tuple[QueueState, Operation]] = (),
    ) -> None:
        """Open a queue again that has changed or lacks a lane, and then send the writes that depend on it again.

        ``further`` has queues that may be refused for the same cause. Those of these writes are opened again too.
        """
        for member in [candidate for candidate in batch if state in candidate.part.queues]:
            concerned = [each for each in further if each[0] in member.part.queues]
            self._repairs.begin(batch, member, RepairedTogether(state, concerned), operation, error)

    def _answer_refusal(
        self,
        batch: list[AtomicWrite],
        member: AtomicWrite,
        handler: RefusalHandler,
        operation: Operation,
        error: ZooKeeperError,
    ) -> None:
        """Take out the write that caused a refusal; it has a request to itself from now on."""
        member.alone = True
        self._repairs.begin(batch, member, handler, operation, error)

    def _leave_out_expired(self, batch: list[AtomicWrite], generation: int) -> bool:
        """Settle writes whose session has ended; return whether there were any."""
        if all(member.part.generation in (None, generation) for member in batch):
            return False
        separate(batch)
        over = [member for member in batch if member.part.generation not in (None, generation)]
        for atomic_write in over:
            batch.remove(atomic_write)
            atomic_write.fail(expired(atomic_write.transaction_id))
        return True

    def _conclude(self, batch: list[AtomicWrite], pending: PendingMulti, sent: Sent) -> None:
        """Settle all writes of a batch alike. Unapplied ones stay, and are sent again if their session permits."""
        if sent.fate is MultiFate.NOT_APPLIED:
            return
        if sent.fate is MultiFate.APPLIED:
            self._applied(batch, pending, sent.results)
            for state in () if pending.put_run is None else pending.put_run.refused:
                self._tasks.spawn(state.allow_bundles, name="first bundle of a queue")
        else:
            for chain in pending.composition.chains:
                chain.unknown()
            separate(batch)
            for atomic_write in list(batch):
                error = undecidable(atomic_write.transaction_id, sent.why)
                self._repairs.reduce(batch, atomic_write, error)
        batch.clear()

    def _applied(self, batch: list[AtomicWrite], pending: PendingMulti, results: list[Result] | None) -> None:
        """Settle all writes of a batch as applied."""
        meter, starts = self.meter, pending.starts
        if meter is not None:
            meter.applied(sum(len(atomic_write.members) for atomic_write in batch))
        for chain in pending.composition.chains:
            chain.applied()
        if results is None:
            for atomic_write in batch:
                atomic_write.succeed(None, meter)
            return
        if pending.put_run is not None:
            pending.put_run.note_sequences(results)
        for atomic_write, start, end in zip(batch, starts, [*starts[1:], pending.shared_start], strict=True):
            atomic_write.succeed(results[start:end], meter)

    def _refused_whole(self, batch: list[AtomicWrite], error: RequestTooLargeError | ServerError) -> None:
        """Reduce or fail the writes of a multi that was refused as a whole."""
        if isinstance(error, RequestTooLargeError):
            self._split(batch, error)
            return
        for atomic_write in list(batch):
            why = NotCommittedError(f"transaction {atomic_write.transaction_id}: {error}; nothing was applied")
            self._repairs.reduce(batch, atomic_write, why)

    def _split(self, batch: list[AtomicWrite], error: RequestTooLargeError) -> None:
        """Send the first write of a group that turned out too large alone; reduce or fail a single one."""
        if len(batch) > 1:
            self._requeue(batch[1:])
            del batch[1:]
            return
        (atomic_write,) = batch
        message, limit = atomic_write.part.only_message, message_limit(self._zookeeper.max_request)
        why = (
            TransactionTooLargeError(f"transaction {atomic_write.transaction_id}: {error}; commit in parts")
            if message is None or len(message.data) <= limit
            else too_large(f"queue {message.state.name!r}: the message", len(message.data), limit)
        )
        self._repairs.reduce(batch, atomic_write, why)
