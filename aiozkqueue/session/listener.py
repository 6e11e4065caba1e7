"""Listeners: supervised services that call a handler for each message, several at a time."""

from __future__ import annotations

import asyncio
import logging
import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

import anyio

from aiozkqueue.errors import AccessDeniedError, ConnectionLostError, QueueError
from aiozkqueue.layout.rates import RatePaths
from aiozkqueue.rates.pace import Pace
from aiozkqueue.rates.timeline import Timeline
from aiozkqueue.runtime.acl_errors import exceeds_quota
from aiozkqueue.runtime.exception_groups import first_of
from aiozkqueue.runtime.reply_limit import ReplyLimit
from aiozkqueue.runtime.task_pool import TaskPool
from aiozkqueue.runtime.tasks import start_task, wait_settled
from aiozkqueue.wording import counted
from aiozkqueue.zookeeper import State, ZooKeeperError

from .alarms import Alarms
from .background import Background
from .interruptions import Interruptions
from .middleware import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from types import TracebackType

    from aiozkqueue.queue.claim.dispatcher import ClaimDispatcher
    from aiozkqueue.queue.claim.waiters import Waiter
    from aiozkqueue.queue.destination import Destination
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.rates.pace import Rates

    from .alarms import OnDead
    from .core import SessionCore
    from .listener_options import ListenerSettings

log: Final = logging.getLogger(__name__)

T_co = TypeVar("T_co", covariant=True)

#: Seconds until a listener claims again after an enforced quota of ZooKeeper has refused it.
AGAIN: Final = 5.0
#: The shortest time between two log records about refusals by a quota, seconds.
LOGGED_EVERY: Final = 300.0


@dataclass(slots=True)
class HandlingCounts:
    """The figures of a listener since its start."""

    begun: bool = False
    handled: int = 0
    """Deliveries whose handler has succeeded."""
    failed: int = 0
    """Deliveries whose handler has failed; a message may be among them several times."""
    refused: bool = False
    """Whether it waits because a quota has refused a claim."""


class Listener(Generic[T_co]):
    """Calls ``handler(delivery)`` for each message, up to ``concurrency`` at a time.

    A handler that returns commits its delivery. One that raises rolls it back, after the policy's delay. A handler may
    raise `Retry` and `Reject`, or settle the delivery itself. The listener claims messages for free slots only. A
    handler begins with the context variables of the listener: a value that another handler has set is not visible. The
    listener continues after lost connections and sessions. While an enforced quota of ZooKeeper refuses its claims, it
    tries again every five seconds. Run it with `run()`, with ``async with listener:``, or several with
    `aiozkqueue.run`.
    """

    def __init__(
        self,
        runtime: SessionCore,
        queue: Destination[T_co],
        handler: object,
        settings: ListenerSettings,
        on_dead: OnDead[T_co] | None,
        *,
        lead: float = 0.0,
    ) -> None:
        self._counts = HandlingCounts()  # first, with the next one: `__del__` needs them even if this raises
        self._stopped = asyncio.Event()
        self._runtime = runtime
        self._queue = queue
        self._settings = settings
        self._handler_name = name_of(handler)
        state = runtime.queue_state(queue.name)
        self._pace = None if settings.rates is None else _pace(runtime, state.paths.name, settings.rates, lead)
        # A call whose attempt is recorded later would begin together with those of later slots.
        self._reply_limit = None if self._pace is None else ReplyLimit(runtime.clock)
        self._interruptions = Interruptions(runtime.zookeeper, state.paths.cancelled)
        self._alarms = None if on_dead is None else Alarms(queue, on_dead)
        self._tasks: list[Callable[[], Coroutine[Any, Any, object]]] = []
        self._wake = asyncio.Event()
        self._busy = 0
        self._task_pool = TaskPool(self._handle)
        self._scopes: dict[anyio.CancelScope, int] = {}
        self._scope: anyio.CancelScope | None = None
        self._failure: BaseException | None = None
        self._running = False
        self._background: Background | None = None
        self._dispatcher: ClaimDispatcher | None = None

    def __repr__(self) -> str:
        return (
            f"<Listener of queue {self._queue.name!r}: {self._handler_name}, concurrency {self._settings.concurrency}>"
        )

    def __str__(self) -> str:
        concurrency = self._settings.concurrency
        return f"listener of queue {self._queue.name}: {self._handler_name}, concurrency {concurrency}"

    @property
    def _activity(self) -> tuple[int, int]:
        """How much it has to do, and how many deliveries have ended.

        The former counts the running handlers, and the wait for a quota: there are messages.
        """
        return self._busy + self._counts.refused, self._counts.handled + self._counts.failed

    def _summary(self) -> str:
        """Return its figures, for the log of a worker."""
        return f"{counted(self._counts.handled, 'message')} handled, {self._counts.failed} failed"

    def stop(self) -> None:
        """Claim no more messages; running handlers may finish within ``drain_timeout`` seconds. Idempotent."""
        self._stopped.set()
        self._wake.set()
        if self._pace is not None:
            self._pace.stop()

    def abort(self) -> None:
        """Stop, and cancel the running handlers: their messages are released at once. Idempotent."""
        self.stop()
        if self._scope is not None:
            self._scope.cancel()

    async def run(self) -> None:
        """Serve until stopped; return when the handlers have finished or were cancelled.

        A stopped listener cannot be restarted: make another one.

        Raises:
            AccessDeniedError, PayloadError, ConfigConflictError, SessionClosedError, WrongLoopError: waiting does not
                resolve the error.
            ConnectionLostError: a server refused a read with an error that ZooKeeper does not document.
            RuntimeError: the listener is already running.
        """
        self._runtime.check()
        if self._running:
            msg = f"the listener of queue {self._queue.name!r} is already running"
            raise RuntimeError(msg)
        self._running = self._counts.begun = True
        forget = self._runtime.zookeeper.on_state(self._state_changed)
        self._runtime.handling[self] = self._queue.name, self._interruptions.running
        try:
            async with anyio.create_task_group() as handlers:
                self._scope = handlers.cancel_scope
                if self._alarms is not None:
                    self._alarms.start(self._runtime.queue_state(self._queue.name), handlers)
                handlers.start_soon(self._watch_cancellations)
                for task in self._tasks:
                    handlers.start_soon(task)
                try:
                    await self._claim_until_stopped(handlers)
                except (QueueError, ZooKeeperError) as error:
                    self._fail(error)
                await self._drain()
                handlers.cancel_scope.cancel()
        except BaseExceptionGroup as group:  # such as a handler's KeyboardInterrupt: raised without the group
            raise first_of(group) from None
        finally:
            forget()
            del self._runtime.handling[self]
            if self._alarms is not None:
                self._alarms.stop()
            self._running = False
            self._scope = None
            try:
                await self._release_unstarted()
            finally:  # it may be cancelled again
                if self._dispatcher is not None:
                    self._dispatcher.users -= 1
                    self._dispatcher = None
        if self._failure is not None:
            raise self._failure

    def __del__(self) -> None:
        """Warn of a listener that was forgotten: nothing takes the messages of its queue."""
        if not self._counts.begun and not self._stopped.is_set():
            warnings.warn(
                f"{self!r} was never run; run it with `await aiozkqueue.run(listener)` or `async with listener`",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )

    async def __aenter__(self) -> Self:
        """Run in the background while the body runs; leaving the block stops and drains the listener.

        If the listener fails, the body is cancelled, and the listener's error is raised on leaving. If the body is
        cancelled, so are the handlers, and their messages are released at once.
        """
        self._background = Background(self)
        self._background.start(self._runtime)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._background is not None  # noqa: S101 - entered
        await self._background.leave(error)

    async def _watch_cancellations(self) -> None:
        try:
            await self._interruptions.watch()
        except ZooKeeperError as error:
            self._fail(error)

    def _fail(self, error: QueueError | ZooKeeperError) -> None:
        """Stop because of an error of a request of this listener; the handlers may finish."""
        if not isinstance(error, QueueError):
            cause, error = error, ConnectionLostError(f"queue {self._queue.name!r}: {error}")
            error.__cause__ = cause
        self._failure = error
        self.stop()

    # -- claiming

    async def _claim_until_stopped(self, handlers: anyio.abc.TaskGroup) -> None:
        """Claim messages until stopped; if a quota refuses a claim, continue after a pause.

        An administrator of the servers may raise a quota at any time, and other programs free room below it.
        """
        clock, logged_at = self._runtime.clock, -math.inf
        while not self._stopped.is_set():
            try:
                await self._claim_and_start(handlers)
            except AccessDeniedError as error:
                if not exceeds_quota(error):
                    raise
                if clock.monotonic() - logged_at >= LOGGED_EVERY:
                    logged_at = clock.monotonic()
                    text = "queue %s: no message can be taken; the listener tries again every %g s: %s"
                    log.warning(text, self._queue.name, AGAIN, error, extra={"queue": self._queue.name})
                await self._pause(clock.monotonic() + AGAIN)

    async def _pause(self, end: float) -> None:
        """Wait until a moment, or until stopped."""
        self._counts.refused, clock = True, self._runtime.clock
        try:
            while not self._stopped.is_set() and (left := end - clock.monotonic()) > 0:
                self._wake.clear()
                timer = clock.call_later(left, self._wake.set)
                try:
                    await self._wake.wait()
                finally:
                    timer.cancel()
        finally:
            self._counts.refused = False

    async def _claim_and_start(self, handlers: anyio.abc.TaskGroup) -> None:
        """Claim messages for free slots, and start their handlers, until stopped."""
        raise NotImplementedError

    def _use_dispatcher(self) -> ClaimDispatcher:
        """Return the dispatcher of its claims, which it uses until it ends."""
        if self._dispatcher is None:
            state = self._runtime.queue_state(self._queue.name)
            self._dispatcher = self._runtime.dispatcher(state, self._settings.condition)
            self._dispatcher.users += 1
        return self._dispatcher

    async def _free(self) -> int:
        """Wait until handlers are free, and return their number; 0 if the listener is stopped."""
        while not self._stopped.is_set():
            if (free := self._settings.concurrency - self._busy) > 0:
                return free
            self._wake.clear()
            await self._wake.wait()
        return 0

    async def _await_claims(self, dispatcher: ClaimDispatcher, waiter: Waiter) -> list[Claim]:
        """Wait for the claims of a request; return none if the listener is stopped in the meantime."""
        waiter.future.add_done_callback(self._answered)
        try:
            while not (waiter.over or self._stopped.is_set()):
                self._wake.clear()
                await self._wake.wait()
        except BaseException:
            dispatcher.cancel_request(waiter)
            raise
        if waiter.over:
            return waiter.future.result()
        dispatcher.cancel_request(waiter)
        return []

    def _start(self, claims: Sequence[Claim], handlers: anyio.abc.TaskGroup) -> None:
        """Start a handler for each of these claims."""
        for claim in claims:
            self._busy += 1
            if not self._task_pool.submit(claim):
                start_task(handlers, self._task_pool.work)

    def _answered(self, _: object) -> None:
        self._wake.set()

    async def _release_unstarted(self) -> None:
        """Release the claims of workers that were cancelled before they could begin, and those still in flight."""
        claims, self._busy = self._unstarted(self._task_pool.close()), 0
        self._task_pool = TaskPool(self._handle)
        dispatcher = self._dispatcher
        if self._runtime.closed or dispatcher is None:
            return
        released = dispatcher.releases.release(claims)
        if released is not None:
            await wait_settled(released, limit=self._runtime.grace)
        await dispatcher.await_releases()

    def _unstarted(self, jobs: list[Claim]) -> list[Claim]:
        """Return the claims of jobs that no task has started."""
        return jobs

    async def _drain(self) -> None:
        with anyio.move_on_after(self._settings.drain_timeout):
            while self._busy:
                self._wake.clear()
                await self._wake.wait()
            if self._alarms is not None:
                await self._alarms.drain()
        if self._busy:
            log.warning(
                "queue %s: cancelling %s that did not finish in time",
                self._queue.name,
                counted(self._busy, "handler"),
                extra={"queue": self._queue.name},
            )

    # -- handling

    async def _handle(self, claim: Claim) -> None:
        try:
            if self._settings.on_lost == "finish":
                await self._deliver(claim)
                return
            with anyio.CancelScope() as scope:
                self._scopes[scope] = claim.generation
                try:
                    await self._deliver(claim)
                finally:
                    del self._scopes[scope]
        except asyncio.CancelledError:
            if anyio.current_effective_deadline() == -math.inf:
                raise
            # The listener was not cancelled: the cancellation came from this message's handling.
        finally:
            self._busy -= 1
            self._wake.set()

    async def _deliver(self, claim: Claim) -> None:
        """Call the handler for a claim, and settle it."""
        raise NotImplementedError

    def _state_changed(self, state: State, generation: int) -> None:
        if self._settings.on_lost != "cancel" or state is State.SUSPENDED:
            return
        for scope, generation_of_claim in list(self._scopes.items()):
            if state is not State.CONNECTED or generation_of_claim != generation:
                scope.cancel()


def _pace(runtime: SessionCore, name: str, rates: Rates, lead: float) -> Pace:
    """Return the pace of a listener with these limits; ``name`` is that of the shared one, if it has no other."""
    timeline = None
    if rates.shared is not None:
        path = RatePaths(runtime.root).rate(rates.name or name)
        timeline = Timeline(runtime.zookeeper, runtime.clock, path, rates.shared, runtime.random)
    return Pace(runtime.clock, rates, timeline, lead)
