"""One all-or-nothing change that a session owes, and how to wait for its fate."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Protocol

from aiozkqueue.errors import ClaimLostError, SessionClosedError, SessionExpiredError
from aiozkqueue.queue.runtime.tasks import wait_settled

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from aiozkqueue.errors import QueueError
    from aiozkqueue.queue.runtime.meter import Meter
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, Result, ZooKeeperError

    from .group_commit import GroupCommitter
    from .put_plan import PutPlan

log: Final = logging.getLogger(__name__)

#: What a settlement that nobody waits for may fail with in the usual course: its claims are gone.
_USUAL: Final = (ClaimLostError, SessionExpiredError, SessionClosedError)

#: About what one operation takes in a multi besides its data: header, path, ACL.
OPERATION_WEIGHT = 140


class WriteOwner(Protocol):
    """Who owes a settlement, and is told of its fate before all others."""

    def commit_settled(self, atomic_write: AtomicWrite) -> None:
        """Take note that it is settled."""


class AtomicWrite(ABC):
    """One all-or-nothing change. It is sent by the committer, and settled when its fate is known.

    Who only wants to be told uses `watch`, who awaits it uses `wait`: a future and its callbacks on every message's
    way would cost more than the change itself. `done` is one for everything else.
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
        "owner",
        "plans",
        "repairs",
        "settled",
        "stores",
        "transaction_id",
        "weight",
    )

    def __init__(
        self, transaction_id: str, generation: int | None, weight: int, stores: tuple[QueueState, ...] = ()
    ) -> None:
        self.transaction_id: str = transaction_id
        self.generation: int | None = generation
        """The ZooKeeper session its claims belong to; None: it has none, and any session may send it."""
        self.weight: int = weight
        """About how many bytes it takes in a multi."""
        self.stores: tuple[QueueState, ...] = stores
        """The queues whose configuration must be the one known, since what is sent depends on it."""
        self.plans: tuple[PutPlan, ...] = ()
        """Of the puts in it that are not plain, once they have been asked for their operations."""
        self.learns: bool = False
        """Whether it learns from what its operations give: else their results are not decoded."""
        self.repairs: int = 0
        """How often it has been refused."""
        self.alone: bool = False
        """Whether it goes in a request of its own, since it was the cause of a refusal: only it waits for the next."""
        self.committer: GroupCommitter | None = None
        """Who has taken it on."""
        self.settled: bool = False
        self.error: BaseException | None = None
        """Why it was not applied, or that this is unknown; None when it was applied."""
        self.owner: WriteOwner | None = None
        """Set before it is settled; a callback would be two objects more on every message's way."""
        self._watchers: tuple[Callable[[AtomicWrite], None], ...] = ()
        self._waiter: asyncio.Future[None] | None = None
        self._done: asyncio.Future[None] | None = None

    # -- what it is

    def grow(self, weight: int) -> None:
        """Count what is sent with it: so many bytes more."""
        self.weight += weight

    @abstractmethod
    def compose(self, sent: list[Operation]) -> None:
        """Append what to send; called anew for every attempt that is not a repetition of the last."""

    @abstractmethod
    def refused(
        self, index: int, operation: Operation, error: ZooKeeperError
    ) -> Coroutine[object, object, None] | None:
        """Answer to a refusal of one operation, the ``index``-th of those composed last.

        Raise what the caller gets; or return None when the settlement has changed and is to go again, or a coroutine
        that mends the cause first.
        """

    def retreat(self, error: QueueError) -> Coroutine[object, object, None] | None:
        """Ask for less after an error that sending the same again does not cure, as `refused` does.

        Raise the error when nothing less will do: the settlement fails with it.
        """
        raise error

    async def reserve_again(self) -> None:  # noqa: B027 - most put nothing
        """Reserve room in queues that became bounded after this was sent.

        Raises: QueueFullError, as `CapacityGate.acquire` does.
        """

    def applied(self, results: Sequence[Result] | None) -> None:  # noqa: B027 - most have nothing to note
        """Take note that it was applied, and what each operation gave; None: not known, or nothing to learn from."""

    def tally(self, meter: Meter) -> None:  # noqa: B027 - most put and end nothing
        """Tell what it has done, just before `applied` is told."""

    def over(self) -> None:  # noqa: B027 - as `applied`
        """Take note that the ZooKeeper session ended without it: its claims are gone."""

    # -- its fate

    def succeed(self, results: Sequence[Result] | None) -> None:
        """Settle as applied."""
        if not self.settled:
            self.applied(results)
            self._settle(None)

    def fail(self, error: BaseException) -> None:
        """Settle as not applied, or as unknown."""
        if not self.settled:
            self._settle(error)

    def expire(self) -> None:
        """Settle as not applied: the session ended first."""
        self.over()
        self.fail(
            SessionExpiredError(
                f"transaction {self.transaction_id}: its ZooKeeper session ended before the commit was applied; "
                "nothing of it was, its messages go to other consumers"
            )
        )

    # -- for those who care

    def watch(self, callback: Callable[[AtomicWrite], None]) -> None:
        """Call back, at once, when it is settled."""
        if self.settled:
            callback(self)
        else:
            self._watchers += (callback,)

    async def wait(self, *, limit: float | None = None) -> None:
        """Wait until it is settled, through any number of cancellations; see `wait_settled`.

        After a cancellation it waits for one session timeout at the most. For one that has been submitted.

        Raises:
            asyncio.CancelledError: the caller was cancelled meanwhile; it may be settled or not.
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
        """Return what is done when this is settled, for the one who awaits it at once, and sees it out if cancelled.

        For one that has been submitted, is not settled yet, and for which nobody else waits.
        """
        committer = self.committer
        assert committer is not None  # noqa: S101 - it has been submitted
        self._waiter = waiter = committer.loop.create_future()
        return waiter

    async def wait_shielded(self) -> None:
        """Wait until it is settled, through further cancellations, for one session timeout at the most."""
        await wait_settled(self.done, limit=self._grace)

    def outcome(self) -> None:
        """Raise what it failed with, if it did. For one that is settled."""
        if self.error is not None:
            raise self.error

    @property
    def done(self) -> asyncio.Future[None]:
        """A future of its fate."""
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
            self._tell_plans(error)
        # They know this: a cycle a message would be work for the garbage collector.
        self.owner, self._watchers, self._waiter = None, (), None
        if self.committer is not None:
            self.committer.count_settled()
        if error is not None and owner is None and not watchers and waiter is None and self._done is None:
            level = logging.DEBUG if isinstance(error, _USUAL) else logging.WARNING
            log.log(level, "transaction %s: %s", self.transaction_id, error)  # nobody else tells of it
        if owner is not None:
            owner.commit_settled(self)
        for watcher in watchers:
            watcher(self)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        if self._done is not None:
            self._resolve(self._done)

    def _tell_plans(self, error: BaseException | None) -> None:
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
            done.exception()  # looked at: a caller that went away has been told all it wanted
