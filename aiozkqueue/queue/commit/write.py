"""Atomic writes: all-or-nothing multis that a session must apply, made of parts, and the wait for their outcome."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from aiozkqueue.errors import (
    ClaimLostError,
    NotCommittedError,
    OutcomeUnknownError,
    SessionClosedError,
    SessionExpiredError,
)
from aiozkqueue.runtime.tasks import wait_settled
from aiozkqueue.zookeeper import current_call

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from aiozkqueue.errors import QueueError
    from aiozkqueue.queue.commit.meter import Meter
    from aiozkqueue.queue.state.hooks import RefusalHandler
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.runtime.clock import ServerClock
    from aiozkqueue.zookeeper import Operation, Result, ZooKeeperError

    from .put import Put

T = TypeVar("T")

log: Final = logging.getLogger(__name__)

#: The usual errors of a write that no caller waits for: its claims are gone.
_USUAL: Final = (ClaimLostError, SessionExpiredError, SessionClosedError)

#: Seconds that a cancelled caller leaves for the answer of a write before it withdraws it.
WITHDRAW_AFTER: Final = 0.05

#: The approximate size of an operation in a multi without its data, in bytes: header, path, ACL.
OPERATION_WEIGHT = 140
#: The least weight of a put.
PUT_WEIGHT = 2 * OPERATION_WEIGHT


class WithdrawnError(NotCommittedError):
    """The caller was cancelled before the write was sent."""


class SharedOps:
    """The handler of operations that several writes of a multi share. The committer answers a refusal for all."""

    __slots__ = ("members",)

    def __init__(self) -> None:
        self.members: list[tuple[AtomicWrite, RefusalHandler]] = []
        """The writes, each with its handler."""

    def handlers(self) -> list[tuple[AtomicWrite, RefusalHandler]]:
        """Return the writes that a refusal concerns, which are separate, and the handler of each."""
        return [pair for atomic_write, handler in self.members for pair in atomic_write.handlers_for(handler)]

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Raise an error: the committer asks the handlers of the members."""
        raise AssertionError(operation) from error


class Chain(Protocol):
    """A znode that each multi about one subject writes at the version that the one before has left.

    At most one such multi is in progress, so each is composed from the outcome of all earlier ones.
    """

    def begin(self) -> None:
        """Forget the changes of an earlier composition."""
        ...

    def operations(self) -> Iterable[Operation]:
        """Return the operations of all changes of this multi."""
        ...

    def applied(self) -> None:
        """Adopt the changes of the multi."""
        ...

    def unknown(self) -> None:
        """Record that the outcome of a multi is unknown."""
        ...


class PutRun(Protocol):
    """Puts that may be stored together, in the order in which they are composed."""

    def add(self, composition: Composition, part: RefusalHandler, puts: Sequence[Any]) -> None:
        """Add puts of the current write."""
        ...

    def flush(self, composition: Composition) -> None:
        """Add the operations of all puts so far."""
        ...


class _BundledCount:
    """The messages of one queue that a multi counts."""

    __slots__ = ("messages", "shared")

    def __init__(self) -> None:
        self.messages = 0
        self.shared = SharedOps()
        """Has the queue answer a refusal for all writes with such messages."""


class Composition:
    """The operations of one multi in their order, and the handlers of their refusals.

    A handler is responsible for all operations from the one that it is named with to the next that has another. The
    operations of a write before its first named handler are answered by the write's part.
    """

    __slots__ = (
        "_bundled_counts",
        "_clock",
        "_handlers",
        "_latest",
        "_now",
        "_starts",
        "chains",
        "operations",
        "put_run",
        "write",
    )

    def __init__(self, clock: ServerClock) -> None:
        self.operations: list[Operation] = []
        """The operations; a part may append to them."""
        self._clock = clock
        self._now: int | None = None
        self._latest: int | None = None
        self._starts: list[int] = []
        self._handlers: list[RefusalHandler] = []
        self.write: AtomicWrite | None = None
        """The write whose operations are being composed."""
        self.put_run: PutRun | None = None
        """The puts that may be stored together; None: each item has its own znode."""
        self.chains: dict[Chain, SharedOps] = {}
        """The chains that this multi continues, with the handler of their operations."""
        self._bundled_counts: dict[QueueState, _BundledCount] = {}

    def begin(self, atomic_write: AtomicWrite) -> None:
        """Compose the operations of this write from here on."""
        self.write = atomic_write
        # The write before may have named a handler, and then added no operation: its puts may be composed later.
        while self._starts and self._starts[-1] == len(self.operations):
            self._starts.pop()
            self._handlers.pop()

    def answer_with(self, handler: RefusalHandler) -> None:
        """Name the handler of all operations from here on."""
        self._starts.append(len(self.operations))
        self._handlers.append(handler)

    def add(self, operation: Operation, handler: RefusalHandler) -> None:
        """Append an operation with its handler."""
        self._starts.append(len(self.operations))
        self._handlers.append(handler)
        self.operations.append(operation)

    def continue_chain(self, chain: Chain, part: RefusalHandler) -> None:
        """Record that the current write changes the subject of a chain; ``part`` answers a refusal for the write."""
        shared = self.chains.get(chain)
        if shared is None:
            self.chains[chain] = shared = SharedOps()
            chain.begin()
        if self.write is not None and (not shared.members or shared.members[-1][0] is not self.write):
            shared.members.append((self.write, part))

    def compose_shared(self) -> None:
        """Add the operations that the writes share, after those of all writes."""
        if self.put_run is not None:
            self.put_run.flush(self)
        for chain, shared in self.chains.items():
            self.answer_with(shared)
            self.operations += chain.operations()
        for state, counted in self._bundled_counts.items():
            self.answer_with(counted.shared)
            self.operations += state.bundle_setup.count(counted.messages)

    def count_bundled(self, state: QueueState, messages: int, writes: Iterable[AtomicWrite] = ()) -> None:
        """Count messages that are put beyond the number of znodes that are created; see `BundleSetup`.

        ``writes`` put them; by default the current one.
        """
        counted = self._bundled_counts.get(state)
        if counted is None:
            self._bundled_counts[state] = counted = _BundledCount()
        counted.messages += messages
        current = () if self.write is None else (self.write,)
        counted.shared.members += [(write, state) for write in writes or current]

    def handler_of(self, index: int, start: int) -> tuple[RefusalHandler, int] | None:
        """Return the last handler named for an operation, and the index of the first operation that it handles.

        Return None if no handler was named since the operation ``start``.
        """
        position = bisect_right(self._starts, index) - 1
        if position < 0 or self._starts[position] < start:
            return None
        return self._handlers[position], self._starts[position]

    def now(self) -> int:
        """Return ZooKeeper's time of this multi in milliseconds; its exact repetitions have the same."""
        if self._now is None:
            self._now = self._clock.now()
        return self._now

    def latest(self) -> int:
        """Return an upper bound of the same time, for moments that must not come early."""
        if self._latest is None:
            self._latest = self._clock.latest()
        return self._latest


class Part(ABC):
    """Operations of an atomic write that belong together, with the handler of their refusals and their outcome.

    A part is a `RefusalHandler` of its own operations.
    """

    __slots__ = ("repairs", "weight")

    weight: int
    """The approximate size in a multi, in bytes."""
    repairs: int
    """The number of refusals so far."""

    generation: int | None = None
    """The ZooKeeper session of its claims; None: it has no claims, and any session may send it."""
    queues: tuple[QueueState, ...] = ()
    """The queues whose configuration must be the known one, because the operations depend on it."""
    needs_results: bool = False
    """Whether it needs the results of its operations; otherwise they are not decoded."""
    chains: tuple[Chain, ...] = ()
    """The chains that it continues."""
    changed: str = ""
    """The name of the changed thing in the error of a user without the right; empty: the error names a znode only."""
    only_message: Put | None = None
    """The message of a direct put of one message, which cannot be sent in parts."""
    unsent: bool = False
    """Whether operations remain to be sent after others have been applied."""

    @property
    def needs_time(self) -> bool:
        """Whether its operations have moments in ZooKeeper's time, which must have been measured recently."""
        return False

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.repairs = 0

    @abstractmethod
    def compose(self, composition: Composition) -> None:
        """Add the operations to send; called again for every attempt except an exact repetition."""

    @abstractmethod
    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Handle the refusal of an operation that was added without a handler; see `RefusalHandler`."""

    def reduce(self, error: QueueError) -> Coroutine[object, object, None] | None:
        """Reduce the part after an error that would recur if the same operations were sent again; see `repair`.

        Raise the error if it cannot be reduced; the write then fails with it.
        """
        raise error

    async def reserve_again(self, atomic_write: AtomicWrite) -> None:  # noqa: B027 - most parts need nothing
        """Reserve capacity in queues that became bounded after this was sent.

        Raises: QueueFullError, as `CapacityGate.acquire` does.
        """

    def applied(self, results: Sequence[Result] | None, meter: Meter | None) -> None:  # noqa: B027 - most parts need nothing
        """Act on the success of the write, and count its effects if there is a meter.

        ``results`` holds one result per operation of the write, or is None if unknown or not needed.
        """

    def failed(self, error: BaseException) -> None:  # noqa: B027 - most parts need nothing
        """Act on the end of a write that was not applied, or may not have been.

        After a SessionExpiredError the locks of its claims are gone.
        """


class JoinedParts(Part):
    """Several parts of one write."""

    __slots__ = ("_parts", "chains", "generation", "needs_results", "queues")

    def __init__(self, parts: Sequence[Part]) -> None:
        weight, needs_results = 0, False
        generation: int | None = None
        queues: tuple[QueueState, ...] = ()
        chains: tuple[Chain, ...] = ()
        for part in parts:  # one loop: most commits of a handler are two parts, and a generator costs as much as a part
            weight += part.weight
            needs_results = needs_results or part.needs_results
            generation = part.generation if generation is None else generation
            queues = _union(queues, part.queues)
            chains = _union(chains, part.chains)
        super().__init__(weight)
        self._parts = parts
        self.generation = generation
        self.queues = queues
        self.needs_results = needs_results
        self.chains = chains

    @property
    def needs_time(self) -> bool:
        """See `Part`."""
        return any(part.needs_time for part in self._parts)

    def compose(self, composition: Composition) -> None:
        """Add the operations of all parts."""
        for part in self._parts:
            composition.answer_with(part)
            part.compose(composition)

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Raise an error: each operation has the handler of its part."""
        raise AssertionError(operation) from error

    async def reserve_again(self, atomic_write: AtomicWrite) -> None:
        """Reserve capacity for all parts."""
        for part in self._parts:
            await part.reserve_again(atomic_write)

    def applied(self, results: Sequence[Result] | None, meter: Meter | None) -> None:
        """Report the success to all parts."""
        for part in self._parts:
            part.applied(results, meter)

    def failed(self, error: BaseException) -> None:
        """Report the failure to all parts."""
        for part in self._parts:
            part.failed(error)


def join_parts(parts: Sequence[Part]) -> Part:
    """Return one part for several, or the only one."""
    return parts[0] if len(parts) == 1 else JoinedParts(parts)


def _union(members: tuple[T, ...], more: tuple[T, ...]) -> tuple[T, ...]:
    """Return the members of both, in order, without duplicates."""
    if not members:
        return more
    return tuple(dict.fromkeys((*members, *more))) if more else members


class Committer(Protocol):
    """The sender of atomic writes."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop on which it runs."""
        ...

    @property
    def grace(self) -> float:
        """Seconds for which a cancelled caller waits for a write in progress."""
        ...

    def count_settled(self, number: int) -> None:
        """Count writes that are settled."""
        ...

    def resubmit(self, atomic_write: AtomicWrite) -> None:
        """Send the rest of a partly applied write."""
        ...

    def withdraw(self, atomic_write: AtomicWrite) -> bool:
        """Remove a write that was not sent, or can no longer be applied, for its submitter to fail.

        Return False if it is in progress.
        """
        ...


class AtomicWrite:
    """One all-or-nothing write. The committer sends it, and it is settled when its outcome is known.

    Use `watch` for a notification and `wait` to await the outcome: a future with callbacks for every message would cost
    more than the write itself. `done` is a future for all other uses.
    """

    __slots__ = (
        "_done",
        "_waiter",
        "_watchers",
        "alone",
        "committer",
        "error",
        "number",
        "operation_count",
        "part",
        "settled",
        "transaction_id",
    )

    part: Part
    """Its operations, and the handler of their outcome. A member of a `SharedWrite` gets one when it is separated."""

    def __init__(
        self, transaction_id: str, part: Part | None = None, watcher: Callable[[AtomicWrite], None] | None = None
    ) -> None:
        self.transaction_id: str = transaction_id
        if part is not None:
            self.part = part
        self.alone: bool = False
        """Whether it has a request to itself because it caused a refusal, so that no other write waits for it."""
        self.committer: Committer | None = None
        """The committer that it was submitted to."""
        self.number: int = 0
        """Its position among all submitted writes. A write that is sent again keeps it, so puts keep their order."""
        self.operation_count: int = 0
        """The number of its own operations when it was last refused."""
        self.settled: bool = False
        self.error: BaseException | None = None
        """The outcome of a settled write. None: it was applied. OutcomeUnknownError: it may have been applied.
        SessionExpiredError: it was not applied, and the locks of its claims are gone. Otherwise: it was not applied.
        """
        self._watchers: tuple[Callable[[AtomicWrite], None], ...] = () if watcher is None else (watcher,)
        self._waiter: asyncio.Future[None] | None = None
        self._done: asyncio.Future[None] | None = None

    @property
    def members(self) -> Sequence[AtomicWrite]:
        """The writes that are settled with it: itself, or the members of a `SharedWrite`."""
        return (self,)

    @property
    def uniform(self) -> bool:
        """Whether its members may be composed together."""
        return True

    def separate(self) -> Sequence[AtomicWrite]:
        """Return its members, each of which has its own part from now on."""
        return (self,)

    def handlers_for(self, handler: RefusalHandler) -> list[tuple[AtomicWrite, RefusalHandler]]:
        """Return its members, which are separate, each with its handler of a refusal that concerns all of them."""
        return [(self, handler)]

    def handler_at(self, handler: RefusalHandler, offset: int) -> tuple[AtomicWrite, RefusalHandler]:  # noqa: ARG002 - a `SharedWrite` needs it
        """Return the member that an operation belongs to, and its handler; the write itself if the operation is shared.

        ``offset`` is the number of operations before it that have the same handler.
        """
        return self, handler

    # -- its outcome

    def succeed(self, results: Sequence[Result] | None, meter: Meter | None = None) -> None:
        """Settle the write as applied, or send its remaining part."""
        if not self.settled:
            part = self.part
            part.applied(results, meter)
            if part.unsent:
                part.repairs = 0
                assert self.committer is not None  # noqa: S101 - it has sent this
                self.committer.resubmit(self)
            else:
                self._count_settled()
                self.settle(None)

    def fail(self, error: BaseException) -> None:
        """Settle the write as not applied, or as unknown."""
        if not self.settled:
            self.part.failed(error)
            self._count_settled()
            self.settle(error)

    def _count_settled(self) -> None:
        if self.committer is not None:
            self.committer.count_settled(1)

    # -- waiting for it

    def watch(self, callback: Callable[[AtomicWrite], None]) -> None:
        """Call ``callback`` when the write is settled, or now if it is."""
        if self.settled:
            callback(self)
        else:
            self._watchers += (callback,)

    async def wait(self, *, limit: float | None = None) -> None:
        """Wait until the write is settled, for up to ``limit`` seconds. The write must have been submitted.

        After a cancellation, a write that was not sent is withdrawn. Otherwise the wait continues for up to one session
        timeout, through any number of cancellations.

        Raises:
            asyncio.CancelledError: the caller was cancelled during the wait; the write may or may not be settled.
        """
        if self.settled:
            return
        committer = self.committer
        assert committer is not None  # noqa: S101 - it has been submitted
        call = current_call.get()
        timer: asyncio.TimerHandle | None = None
        try:
            if self._waiter is not None:
                await asyncio.wait((self.done,), timeout=limit)
                return
            self._waiter = waiter = committer.loop.create_future()
            if limit is not None:
                timer = committer.loop.call_later(limit, self.stop_waiting)
            await waiter
        except asyncio.CancelledError:
            await self._withdraw_or_wait(committer, 0.0 if call is not None and call.expired else committer.grace)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if call is not None and self._may_be_applied():
                call.sent = True

    def _may_be_applied(self) -> bool:
        """Whether it was applied, or may be."""
        return not self.settled or self.error is None or isinstance(self.error, OutcomeUnknownError)

    def stop_waiting(self) -> None:
        """End the `wait` for it, settled or not."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _withdraw_or_wait(self, committer: Committer, grace: float) -> None:
        """Withdraw the write for a cancelled caller, or wait until it is settled if it is in progress."""
        with suppress(asyncio.CancelledError):  # the caller raises the first one
            await wait_settled(self.done, limit=WITHDRAW_AFTER)
        if self.settled:
            return
        if committer.withdraw(self):
            msg = f"transaction {self.transaction_id}: cancelled before it was sent; nothing was applied"
            self.fail(WithdrawnError(msg))
        else:
            await wait_settled(self.done, limit=grace)

    def raise_error(self) -> None:
        """Raise the error of a settled write, unless it was applied."""
        if self.error is not None:
            raise self.error

    @property
    def done(self) -> asyncio.Future[None]:
        """A future of the outcome."""
        if self._done is None:
            self._done = asyncio.get_running_loop().create_future()
            if self.settled:
                self._resolve(self._done)
        return self._done

    def settle(self, error: BaseException | None) -> None:
        """Notify its watchers and the caller that waits for it; its part and its committer know the outcome already."""
        self.settled = True
        self.error = error
        watchers, waiter = self._watchers, self._waiter
        # Drop the references: a reference cycle for every message would burden the garbage collector.
        self._watchers, self._waiter = (), None
        if not watchers and waiter is None and self._done is None:
            self.log_failure()  # nothing else reports it
        for watcher in watchers:
            watcher(self)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        if self._done is not None:
            self._resolve(self._done)

    def log_failure(self) -> None:
        """Log the error of a settled write that no caller receives."""
        if self.error is not None:
            level = logging.DEBUG if isinstance(self.error, _USUAL) else logging.WARNING
            extra = {"transaction_id": self.transaction_id}
            log.log(level, "a write that no caller waits for: %s", self.error, extra=extra)

    def _resolve(self, done: asyncio.Future[None]) -> None:
        if done.done():
            return
        if self.error is None:
            done.set_result(None)
        else:
            done.set_exception(self.error)
            done.exception()  # marks the error as retrieved, since the caller may no longer wait
