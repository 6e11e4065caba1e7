"""An all-or-nothing write that a session must apply, and the wait for its outcome."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, Protocol

from aiozkqueue.errors import ClaimLostError, SessionClosedError, SessionExpiredError
from aiozkqueue.queue.runtime.tasks import wait_settled

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from aiozkqueue.errors import QueueError
    from aiozkqueue.queue.commit.meter import Meter
    from aiozkqueue.queue.state.hooks import RefusalHandler
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, Result, ZooKeeperError

    from .put_plan import PutPlan

log: Final = logging.getLogger(__name__)

#: The usual errors of a write that nobody waits for: its claims are gone.
_USUAL: Final = (ClaimLostError, SessionExpiredError, SessionClosedError)

#: The approximate size of an operation in a multi without its data, in bytes: header, path, ACL.
OPERATION_WEIGHT = 140


class Committer(Protocol):
    """The sender of atomic writes."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop on which it runs."""
        ...

    @property
    def grace(self) -> float:
        """Seconds for which a cancelled caller waits for a write under way."""
        ...

    def count_settled(self) -> None:
        """Count a write that is settled."""
        ...

    def resubmit(self, atomic_write: AtomicWrite) -> None:
        """Send the rest of a write of which a part has been applied."""
        ...


class Composition:
    """The operations of one multi in their order, and the handlers of their refusals.

    A handler answers for all operations from the one that it is named with to the next that has another. An operation
    before the first named handler of a write is answered by the write itself.
    """

    __slots__ = ("_handlers", "_starts", "operations")

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        """The operations; a caller may append to them."""
        self._starts: list[int] = []
        self._handlers: list[RefusalHandler] = []

    def answer_with(self, handler: RefusalHandler) -> None:
        """Name the handler of all operations from here on."""
        self._starts.append(len(self.operations))
        self._handlers.append(handler)

    def add(self, operation: Operation, handler: RefusalHandler) -> None:
        """Append an operation with its handler."""
        self._starts.append(len(self.operations))
        self._handlers.append(handler)
        self.operations.append(operation)

    def handler_of(self, index: int, start: int) -> RefusalHandler | None:
        """Return the last handler named for an operation; None if there is none since the operation ``start``."""
        position = bisect_right(self._starts, index) - 1
        return self._handlers[position] if position >= 0 and self._starts[position] >= start else None


class WriteOwner(Protocol):
    """The owner of a write, notified of the outcome before all watchers."""

    def commit_settled(self, atomic_write: AtomicWrite) -> None:
        """Handle the outcome of a settled write."""


class AtomicWrite(ABC):
    """One all-or-nothing write. The committer sends it, and it is settled when its fate is known.

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
        "generation",
        "learns",
        "number",
        "owner",
        "plans",
        "repairs",
        "settled",
        "stores",
        "transaction_id",
        "weight",
    )

    def __init__(
        self, transaction_id: str, generation: int | None, weight: int, states: tuple[QueueState, ...] = ()
    ) -> None:
        self.transaction_id: str = transaction_id
        self.generation: int | None = generation
        """The ZooKeeper session of its claims; None: it has no claims, and any session may send it."""
        self.weight: int = weight
        """The approximate size in a multi, in bytes."""
        self.stores: tuple[QueueState, ...] = states
        """The queues whose configuration must be the known one, because the operations depend on it."""
        self.plans: tuple[PutPlan, ...] = ()
        """The plans of its puts, set once their operations have been composed."""
        self.learns: bool = False
        """Whether it needs the results of its operations; otherwise they are not decoded."""
        self.repairs: int = 0
        """The number of refusals so far."""
        self.alone: bool = False
        """Whether it has a request to itself because it caused a refusal, so that no other write waits for it."""
        self.committer: Committer | None = None
        self.number: int = 0
        """Its position among all submitted writes. A write that is sent again keeps it, so puts keep their order."""
        """The committer that it was submitted to."""
        self.settled: bool = False
        self.error: BaseException | None = None
        """Why it was not applied, or that its fate is unknown; None if it was applied."""
        self.owner: WriteOwner | None = None
        """Set before it is settled. A callback would cost two more objects for every message."""
        self._watchers: tuple[Callable[[AtomicWrite], None], ...] = ()
        self._waiter: asyncio.Future[None] | None = None
        self._done: asyncio.Future[None] | None = None

    # -- its operations

    def grow(self, weight: int) -> None:
        """Add ``weight`` bytes for operations sent with it."""
        self.weight += weight

    @abstractmethod
    def compose(self, composition: Composition) -> None:
        """Add the operations to send; called again for every attempt except an exact repetition."""

    @abstractmethod
    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Handle the refusal of an operation that was added without a handler; see `RefusalHandler`."""

    def retreat(self, error: QueueError) -> Coroutine[object, object, None] | None:
        """Reduce the write after an error that would recur if the same operations were sent again; see `repair`.

        Raise the error if the write cannot be reduced; the write then fails with it.
        """
        raise error

    async def reserve_again(self) -> None:  # noqa: B027 - most put nothing
        """Reserve room in queues that became bounded after this was sent.

        Raises: QueueFullError, as `CapacityGate.acquire` does.
        """

    def applied(self, results: Sequence[Result] | None) -> None:  # noqa: B027 - most need not react
        """Handle success; ``results`` holds one result per operation, or is None if unknown or not needed."""

    def tally(self, meter: Meter) -> None:  # noqa: B027 - most put and end nothing
        """Count the effects of the write; called just before `applied`."""

    def over(self) -> None:  # noqa: B027 - as `applied`
        """Handle the end of the ZooKeeper session before the write was applied: its claims are gone."""

    # -- its outcome

    def succeed(self, results: Sequence[Result] | None) -> None:
        """Settle the write as applied."""
        if not self.settled:
            self.applied(results)
            self._settle(None)

    def fail(self, error: BaseException) -> None:
        """Settle the write as not applied, or as unknown."""
        if not self.settled:
            self._settle(error)

    def expire(self) -> None:
        """Settle the write as not applied, because the session ended first."""
        self.over()
        self.fail(
            SessionExpiredError(
                f"transaction {self.transaction_id}: its ZooKeeper session ended before the commit was applied; "
                "nothing was applied, and its messages go to other consumers"
            )
        )

    # -- waiting for it

    def watch(self, callback: Callable[[AtomicWrite], None]) -> None:
        """Call ``callback`` when the write is settled, or now if it is."""
        if self.settled:
            callback(self)
        else:
            self._watchers += (callback,)

    async def wait(self, *, limit: float | None = None) -> None:
        """Wait until the write is settled, through any number of cancellations; see `wait_settled`.

        After a cancellation it waits up to one session timeout. The write must have been submitted.

        Raises:
            asyncio.CancelledError: the caller was cancelled during the wait; the write may or may not be settled.
        """
        if self.settled:
            return
        if limit is not None or self._waiter is not None:
            await wait_settled(self.done, grace=self._grace, limit=limit)
            return
        try:
            await self.waiter()
        except asyncio.CancelledError:
            await self.wait_shielded()
            raise

    def waiter(self) -> asyncio.Future[None]:
        """Return a future that is done when the write is settled; a caller that is cancelled must `wait_shielded`.

        The write must have been submitted and not be settled, and there must be no other waiter.
        """
        committer = self.committer
        assert committer is not None  # noqa: S101 - it has been submitted
        self._waiter = waiter = committer.loop.create_future()
        return waiter

    async def wait_shielded(self) -> None:
        """Wait until the write is settled, through further cancellations, up to one session timeout."""
        await wait_settled(self.done, limit=self._grace)

    def outcome(self) -> None:
        """Raise the error of a settled write, if it failed."""
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

    @property
    def _grace(self) -> float:
        assert self.committer is not None  # noqa: S101 - it has been submitted
        return self.committer.grace

    def _settle(self, error: BaseException | None) -> None:
        self.settled = True
        self.error = error
        owner, watchers, waiter = self.owner, self._watchers, self._waiter
        if self.plans:
            self._notify_plans(error)
        # Drop the references: a reference cycle for every message would burden the garbage collector.
        self.owner, self._watchers, self._waiter = None, (), None
        if self.committer is not None:
            self.committer.count_settled()
        if error is not None and owner is None and not watchers and waiter is None and self._done is None:
            level = logging.DEBUG if isinstance(error, _USUAL) else logging.WARNING
            log.log(level, "transaction %s: %s", self.transaction_id, error)  # nothing else reports it
        if owner is not None:
            owner.commit_settled(self)
        for watcher in watchers:
            watcher(self)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        if self._done is not None:
            self._resolve(self._done)

    def _notify_plans(self, error: BaseException | None) -> None:
        plans, self.plans = self.plans, ()
        for plan in plans:
            for attached_op in plan.attached_ops:
                attached_op.settled(error)

    def _resolve(self, done: asyncio.Future[None]) -> None:
        if done.done():
            return
        if self.error is None:
            done.set_result(None)
        else:
            done.set_exception(self.error)
            done.exception()  # marks the error as retrieved, since the caller may no longer wait
