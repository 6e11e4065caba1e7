"""Settlements: all-or-nothing changes, each applied exactly once, whatever happens to connection and session.

Settlements that are ready at the same moment share a multi, which goes out under a commit slot (see `slot`). When one
of them is the cause of a refusal, it alone is taken out, and the others go again without it. From then on it goes in
requests of its own, a bounded number of times: it can hold up nobody but itself.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
from collections import deque
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

import anyio

from aiozkqueue.errors import (
    AccessDeniedError,
    NotCommittedError,
    OutcomeUnknownError,
    QueueError,
    SessionClosedError,
    TransactionTooLargeError,
)
from aiozkqueue.zookeeper import (
    AuthFailedError,
    NoAuthError,
    RequestTooLargeError,
    State,
    ZooKeeperError,
)

from .slot import Fate, RefusedError, Slot

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from aiozkqueue.layout import ClientPaths
    from aiozkqueue.queue.runtime.clock import ServerClock
    from aiozkqueue.queue.runtime.meter import Meter
    from aiozkqueue.queue.runtime.tasks import TaskOwner
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, ZooKeeper

    from .slot import Sending, Sent
    from .write import AtomicWrite

log: Final = logging.getLogger(__name__)

SLOTS = 4
GROUP_BYTES = 512 * 1024
GROUP = 250
#: So many settlements go out without waiting for the end of the loop's tick. Who was answered together commits together
#: again; sent all in one multi, the server would stand still while we prepare it, and we while it is applied.
FULL_GROUP = 64
#: Bytes that one settlement alone makes a group of.
FULL_WEIGHT = 32 * 1024
#: Of batches of more than a few puts one in so many is asked how far the lanes' counters have come: reading the paths
#: is about a tenth of a put's cost, and a lane that ought to have been left has 2^30 to go.
LEARN_EVERY = 16
FEW = 8
#: How often one settlement may be refused, whatever the cause, before it has to ask for less, or fails.
MENDINGS = 20


class _Flight:
    """A batch, and the multi that it makes."""

    __slots__ = ("batch", "learns", "operations", "sending", "starts", "stores")

    def __init__(self, batch: list[AtomicWrite]) -> None:
        self.batch = batch
        self.stores: list[QueueState] = []
        self.operations: list[Operation] = []
        self.starts: list[int] = []
        self.learns = False
        self.sending: Sending | None = None

    def compose(self, crowds: Iterator[int]) -> None:
        """Make up the multi, by what is known now; ``crowds`` counts those of more than a few that would learn."""
        self.stores = _stores_of(self.batch)
        self.operations = [store.check() for store in self.stores]
        for atomic_write in self.batch:
            self.starts.append(len(self.operations))
            atomic_write.compose(self.operations)
            self.learns = self.learns or atomic_write.learns
        if self.learns and len(self.batch) > FEW:
            self.learns = next(crowds) % LEARN_EVERY == 0


class GroupCommitter:
    """Sends a session's settlements, several multis at once, each under a slot of its own."""

    def __init__(
        self, zookeeper: ZooKeeper, paths: ClientPaths, tasks: TaskOwner, clock: ServerClock, about: bytes = b""
    ) -> None:
        self._zookeeper = zookeeper
        self._paths = paths
        self._tasks = tasks
        self._clock = clock
        self._about = about
        self._waiting: deque[AtomicWrite] = deque()
        self._mending: dict[AtomicWrite, anyio.CancelScope] = {}
        self._idle: list[tuple[Slot, asyncio.Future[_Flight | None]]] = []
        self._roused = False
        self._unsettled = 0
        self._crowds = count()
        self._drained: asyncio.Event = asyncio.Event()
        self._drained.set()
        self._closed = False
        self.meter: Meter | None = None
        """What counts what is applied; None: nothing does."""
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()

    @property
    def grace(self) -> float:
        """How long a cancelled caller waits for what it has begun: one session timeout, seconds."""
        return self._zookeeper.session_timeout

    def start(self) -> None:
        """Start one task a slot."""
        for number in range(SLOTS):
            slot = Slot(self._zookeeper, self._paths, number, self._clock, self._about)
            self._tasks.spawn(self._serve, slot, name=f"commit slot {number}")

    def submit(self, atomic_write: AtomicWrite) -> None:
        """Take a settlement on; from here on its fate is this object's duty.

        Raises:
            SessionClosedError: the session has been closed.
        """
        if self._closed:
            raise SessionClosedError(CLOSED)
        atomic_write.committer = self
        if not self._unsettled:
            self._drained.clear()
        self._unsettled += 1
        self._waiting.append(atomic_write)
        if (len(self._waiting) >= FULL_GROUP or atomic_write.weight >= FULL_WEIGHT) and self._idle:
            self._depart()
        elif not self._roused:
            self._wake()

    def resubmit(self, atomic_write: AtomicWrite) -> None:
        """Send the rest of a settlement of which a part has been applied."""
        self._put_back([atomic_write])
        self._wake()

    def withdraw(self, atomic_write: AtomicWrite) -> bool:
        """Take back one that is not under way, for its submitter to fail; False when it is."""
        scope = self._mending.pop(atomic_write, None)
        if scope is not None:
            scope.cancel()
            return True
        try:
            self._waiting.remove(atomic_write)
        except ValueError:
            return False
        return True

    async def drain(self) -> None:
        """Wait until nothing is unsettled."""
        await self._drained.wait()

    def close(self) -> None:
        """Refuse what comes from now on, and fail what is left; what may have been sent is unknown for good."""
        self._closed = True
        self._fail_unsent()

    def count_settled(self) -> None:
        """Take note that one that was submitted has come to its end."""
        self._unsettled -= 1
        if not self._unsettled:
            self._drained.set()

    def _put_back(self, writes: list[AtomicWrite]) -> None:
        """Have some that were taken from the line go before the others, if anything goes any more."""
        self._waiting.extendleft(reversed(writes))
        if self._closed:
            self._fail_unsent()

    def _fail_unsent(self) -> None:
        while self._waiting:
            self._waiting.popleft().fail(
                SessionClosedError(f"{CLOSED} before this was sent; nothing of it was applied")
            )

    def _wake(self) -> None:
        free = self._free_slot()
        if free is not None:
            free[1].set_result(None)
            self._roused = True

    def _free_slot(self) -> tuple[Slot, asyncio.Future[_Flight | None]] | None:
        """Return the idle slot used last: whoever commits one at a time needs no other made."""
        while self._idle:
            free = self._idle.pop()
            if not free[1].done():  # else its task is being cancelled: the session is being closed
                return free
        return None

    def _depart(self) -> None:
        """Send a group from here, in the midst of the loop's tick, unless anything stands in the way."""
        free = self._free_slot()
        if free is None:
            return
        slot, berth = free
        generation = self._zookeeper.generation
        batch = self._next_batch()
        flight = _Flight(batch)
        berth.set_result(flight)
        if (
            slot.ready
            and self._zookeeper.state is State.CONNECTED
            and {one.generation for one in batch} <= {generation, None}
        ):
            flight.compose(self._crowds)
            flight.sending = slot.begin(flight.operations, generation, learns=flight.learns)

    async def _serve(self, slot: Slot) -> None:
        while True:
            flight = await self._next_flight(slot)
            batch = flight.batch
            try:
                await self._settle(slot, flight)
            except (AuthFailedError, NoAuthError) as error:
                for atomic_write in batch:
                    atomic_write.fail(AccessDeniedError(f"{slot.path}: {error}"))
            except ZooKeeperError as error:
                for atomic_write in batch:
                    log.warning(
                        "transaction %s: not known any more whether it was applied: %s: %s",
                        atomic_write.transaction_id,
                        slot.path,
                        error,
                        extra={"transaction_id": atomic_write.transaction_id},
                    )
                self._lose_sight(batch, str(error))
            except BaseException as error:
                self._lose_sight(batch, repr(error))
                raise

    async def _next_flight(self, slot: Slot) -> _Flight:
        while not self._waiting:
            berth: asyncio.Future[_Flight | None] = self.loop.create_future()
            self._idle.append((slot, berth))
            try:
                flight = await berth
            except asyncio.CancelledError:
                if berth.done() and not berth.cancelled() and (flight := berth.result()) is not None:
                    self._lose_sight(flight.batch, "closed")  # it had departed in the same moment
                raise
            if flight is not None:
                return flight
            self._roused = False
        return _Flight(self._next_batch())

    def _lose_sight(self, batch: list[AtomicWrite], why: str) -> None:
        """Nobody will find out any more what became of these."""
        for atomic_write in batch:
            atomic_write.fail(unknown(atomic_write.transaction_id, f"the session was closed or failed ({why})"))

    def _next_batch(self) -> list[AtomicWrite]:
        waiting = self._waiting
        batch: list[AtomicWrite] = []
        weight = 0
        while waiting and len(batch) < GROUP:
            atomic_write = waiting[0]
            if batch and (atomic_write.alone or weight + atomic_write.weight > GROUP_BYTES):
                break
            weight += atomic_write.weight
            batch.append(waiting.popleft())
            if atomic_write.alone:
                break
        if waiting:
            self._wake()  # there is work for another slot
        return batch

    async def _settle(self, slot: Slot, flight: _Flight) -> None:
        """Bring every member of a batch to its end, or to its mending."""
        batch = flight.batch
        while batch:
            try:
                if flight.sending is not None:
                    sent = await slot.finish(flight.sending)
                else:
                    generation = await self._zookeeper.wait_connected()
                    if self._leave_out_expired(batch, generation):
                        flight = _Flight(batch)
                        continue
                    flight.compose(self._crowds)
                    sent = await slot.send(flight.operations, generation, learns=flight.learns)
            except RefusedError as refusal:
                index, stores, starts = refusal.index, flight.stores, flight.starts
                if index < len(stores):
                    self._refresh(batch, stores[index], flight.operations[index], refusal.error)
                else:
                    member = bisect.bisect_right(starts, index) - 1
                    self._answer_refusal(
                        batch, batch[member], index - starts[member], flight.operations[index], refusal.error
                    )
            except RequestTooLargeError as error:
                self._split(batch, error)
            else:
                self._conclude(batch, flight.starts, sent)
            if batch:  # what was not the cause of a refusal, or was not applied, goes again
                flight = _Flight(batch)

    def _leave_out_expired(self, batch: list[AtomicWrite], generation: int) -> bool:
        """Settle members whose session is over; tell whether there were any."""
        expired = [one for one in batch if one.generation not in (None, generation)]
        for atomic_write in expired:
            batch.remove(atomic_write)
            atomic_write.expire()
        return bool(expired)

    def _conclude(self, batch: list[AtomicWrite], starts: list[int], sent: Sent) -> None:
        """Resolve all members alike; what was not applied stays, and goes again if its session allows."""
        if sent.fate is Fate.NOT_APPLIED:
            return
        if sent.fate is Fate.APPLIED:
            if self.meter is not None:
                self.meter.applied(batch)
            results = sent.results
            if results is None:
                for atomic_write in batch:
                    atomic_write.succeed(None)
            else:
                for atomic_write, start, end in zip(batch, starts, [*starts[1:], None], strict=True):
                    atomic_write.succeed(results[start:end])
        else:
            for atomic_write in list(batch):
                error = unknown(atomic_write.transaction_id, "its commit slot has been collected")
                self._go_on(batch, atomic_write, partial(atomic_write.retreat, error))
        batch.clear()

    def _refresh(self, batch: list[AtomicWrite], store: QueueState, check: Operation, error: ZooKeeperError) -> None:
        """A queue's configuration has changed: whatever depends on it lines up again when it has been read."""
        for member in [one for one in batch if store in one.stores]:
            self._mend_or_fail(batch, member, partial(store.repair, check, error), error)

    def _answer_refusal(
        self, batch: list[AtomicWrite], member: AtomicWrite, index: int, operation: Operation, error: ZooKeeperError
    ) -> None:
        """Let the cause of a refusal decide; the rest of the batch goes again without it."""
        member.alone = True
        self._mend_or_fail(batch, member, partial(member.refused, index, operation, error), error)

    def _mend_or_fail(
        self,
        batch: list[AtomicWrite],
        member: AtomicWrite,
        answer: Callable[[], Coroutine[object, object, None] | None],
        error: ZooKeeperError,
    ) -> None:
        """Take a member that was refused out of its batch, and let it go again, or fail, as the answer says."""
        member.repairs += 1
        if member.repairs > MENDINGS:
            msg = f"transaction {member.transaction_id}: refused {MENDINGS} times, at last: {error}"
            answer = partial(member.retreat, NotCommittedError(msg))
        self._go_on(batch, member, answer)

    def _go_on(
        self,
        batch: list[AtomicWrite],
        member: AtomicWrite,
        answer: Callable[[], Coroutine[object, object, None] | None],
    ) -> None:
        """Take a member out of its batch; it goes again as it is now, or when it has been mended, or it fails."""
        try:
            mending = answer()
        except QueueError as reported:
            batch.remove(member)
            member.fail(reported)
            return
        batch.remove(member)
        if mending is not None:
            self._begin_mending(member, mending)
        elif not member.settled:
            self.resubmit(member)

    def _begin_mending(self, atomic_write: AtomicWrite, mending: Coroutine[object, object, None]) -> None:
        self._mending[atomic_write] = scope = anyio.CancelScope()
        self._tasks.spawn(self._repair, atomic_write, mending, scope, name="mend")

    async def _repair(
        self, atomic_write: AtomicWrite, mending: Coroutine[object, object, None], scope: anyio.CancelScope
    ) -> None:
        """Mend the cause of a refusal away from the slots, so that nobody else waits for it.

        Nothing of it is under way meanwhile: until it is back in line, it can be withdrawn.
        """
        try:
            with scope:
                await mending
                if any(store.room is not None for store in atomic_write.stores):
                    await atomic_write.reserve_again()
        except (QueueError, ZooKeeperError) as error:
            atomic_write.fail(error if isinstance(error, QueueError) else NotCommittedError(f"{error}"))
        except asyncio.CancelledError:
            atomic_write.fail(SessionClosedError(f"{CLOSED} before this was applied; nothing of it was"))
            raise
        else:
            if not scope.cancel_called and not atomic_write.settled:
                self.resubmit(atomic_write)
        finally:
            self._mending.pop(atomic_write, None)

    def _split(self, batch: list[AtomicWrite], error: RequestTooLargeError) -> None:
        """A group was estimated too low: send its first member alone; one that is too large alone is cut, or fails."""
        if len(batch) > 1:
            self._put_back(batch[1:])
            del batch[1:]
            return
        (atomic_write,) = batch
        too_large = TransactionTooLargeError(f"transaction {atomic_write.transaction_id}: {error}; commit in parts")
        self._go_on(batch, atomic_write, partial(atomic_write.retreat, too_large))


def _stores_of(batch: list[AtomicWrite]) -> list[QueueState]:
    """The queues that members depend on, each once: one check for all who put to a queue."""
    stores: list[QueueState] = []
    for atomic_write in batch:
        for store in atomic_write.stores:
            if store not in stores:
                stores.append(store)
    return stores


CLOSED = "the session has been closed"


def unknown(transaction_id: str, why: str) -> OutcomeUnknownError:
    """Make the error for a commit whose fate cannot be told now."""
    return OutcomeUnknownError(
        f"transaction {transaction_id}: {why}; whether it was applied is not known, "
        "`await session.outcome(error.transaction_id)` tells when it can be",
        transaction_id,
    )
