"""Listeners: supervised services that call a handler for each message, several at a time."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Final, Generic, Literal, Self, TypeVar, cast

import anyio

from aiozkqueue.errors import QueueError, Reject, Retry, SessionClosedError, SessionExpiredError
from aiozkqueue.queue.internals import settle_failed, work_of
from aiozkqueue.zookeeper import State

from .background import Background
from .claim.deliver import deliver_claims, deliver_claims_now
from .delivery import deliver
from .outcome import Outcome
from .runtime.task_pool import TaskPool
from .runtime.tasks import wait_settled
from .state.log_context import about
from .transaction import commit_or_leave, describe
from .unit_of_work import PASSING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from aiozkqueue.layout import Condition

    from .claim.dispatcher import ClaimDispatcher
    from .claim.waiters import Waiter
    from .delivery import Delivery
    from .destination import Destination
    from .session_core import SessionCore
    from .state.claim import Claim

log: Final = logging.getLogger(__name__)

T_co = TypeVar("T_co", covariant=True)


class Listener(Generic[T_co]):
    """Calls ``handler(delivery)`` for each message, up to ``concurrency`` at a time.

    A handler that returns commits its delivery. One that raises rolls it back, after the policy's delay. A handler may
    raise `Retry` and `Reject`, or settle the delivery itself. The listener claims messages for free slots only. Tasks
    are reused for further messages: a context variable that a handler sets stays set unless it is reset. The listener
    waits out lost connections and sessions. Run it with `run()`, with ``async with listener:``, or several with
    `aiozkqueue.run`.
    """

    def __init__(
        self,
        runtime: SessionCore,
        queue: Destination[T_co],
        handler: Callable[[Delivery[T_co]], Awaitable[None]],
        *,
        concurrency: int,
        drain_timeout: float | None,
        on_lost: Literal["finish", "cancel"],
        handler_name: str,
        condition: Condition | None = None,
    ) -> None:
        self._runtime = runtime
        self._queue = queue
        self._handler = handler
        self._handler_name = handler_name
        self._concurrency = concurrency
        self._drain_timeout = drain_timeout
        self._on_lost = on_lost
        self._condition = condition
        self._stopped = asyncio.Event()
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
        return f"<Listener of queue {self._queue.name!r}: {self._handler_name}, concurrency {self._concurrency}>"

    def stop(self) -> None:
        """Claim no more messages; running handlers may finish within ``drain_timeout`` seconds. Idempotent."""
        self._stopped.set()
        self._wake.set()

    def abort(self) -> None:
        """Stop, and cancel the running handlers: their messages are released at once. Idempotent."""
        self.stop()
        if self._scope is not None:
            self._scope.cancel()

    async def run(self) -> None:
        """Serve until stopped; return when the handlers have finished or were cancelled.

        A stopped listener cannot be restarted: make another one.

        Raises: AccessDeniedError, ConfigConflictError, SessionClosedError, WrongLoopError: errors that waiting does not
        resolve.
            RuntimeError: the listener is already running.
        """
        self._runtime.check()
        if self._running:
            msg = f"the listener of queue {self._queue.name!r} is already running"
            raise RuntimeError(msg)
        self._running = True
        forget = self._runtime.zookeeper.on_state(self._state_changed)
        try:
            async with anyio.create_task_group() as handlers:
                self._scope = handlers.cancel_scope
                try:
                    await self._claim_and_start(handlers)
                except QueueError as error:
                    self._failure = error
                    self.stop()
                await self._drain()
                handlers.cancel_scope.cancel()
        except BaseExceptionGroup as group:  # such as a handler's KeyboardInterrupt: raised without the group
            raised: BaseException = group
            while isinstance(raised, BaseExceptionGroup):
                raised = cast("BaseExceptionGroup[BaseException]", raised).exceptions[0]
            raise raised from None
        finally:
            forget()
            self._running = False
            self._scope = None
            await self._release_unstarted()
        if self._failure is not None:
            raise self._failure

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

    # -- claiming

    async def _claim_and_start(self, handlers: anyio.abc.TaskGroup) -> None:
        """Request claims for slots as they become free, without waiting for earlier requests."""
        dispatcher = self._dispatcher = self._runtime.dispatcher(
            self._runtime.queue_state(self._queue.name), self._condition
        )
        waiters: list[Waiter] = []
        requested = 0
        try:
            while not self._stopped.is_set():
                for waiter in [waiter for waiter in waiters if waiter.over]:
                    waiters.remove(waiter)
                    requested -= waiter.limit
                    for claim in waiter.future.result():
                        self._busy += 1
                        if not self._task_pool.submit(claim):
                            handlers.start_soon(self._task_pool.work)
                free = self._concurrency - self._busy - requested
                if free > 0:
                    if not (waiters and dispatcher.request_more(waiters[-1], free)):
                        waiters.append(dispatcher.request(free))
                        waiters[-1].future.add_done_callback(self._answered)
                    requested += free
                self._wake.clear()
                await self._wake.wait()
        finally:
            for waiter in waiters:  # some may have been answered at the same moment
                dispatcher.give_up(waiter)

    def _answered(self, _: object) -> None:
        self._wake.set()

    async def _release_unstarted(self) -> None:
        """Release the claims of workers that were cancelled before they could begin, and those still in flight."""
        claims, self._busy = self._task_pool.close(), 0
        self._task_pool = TaskPool(self._handle)
        dispatcher = self._dispatcher
        if self._runtime.closed or dispatcher is None:
            return
        released = dispatcher.release(claims)
        if released is not None:
            await wait_settled(released, limit=self._runtime.grace)
        await dispatcher.await_releases()

    async def _drain(self) -> None:
        deadline = None if self._drain_timeout is None else anyio.current_time() + self._drain_timeout
        with anyio.move_on_at(deadline) if deadline is not None else anyio.CancelScope():
            while self._busy:
                self._wake.clear()
                await self._wake.wait()
        if self._busy:
            log.warning(
                "queue %s: %d handlers did not finish in time and are cancelled",
                self._queue.name,
                self._busy,
                extra={"queue": self._queue.name},
            )

    # -- handling

    async def _handle(self, claim: Claim) -> None:
        try:
            if self._on_lost == "finish":
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

    async def _deliver(self, claim: Claim) -> None:  # noqa: C901 - one function call less for each message
        runtime, queue = self._runtime, self._queue
        try:
            delivered = deliver_claims_now(runtime, queue, [claim])
            if delivered is None:
                delivered = await deliver_claims(runtime, queue, [claim])
        except SessionExpiredError as error:
            log.info("%s", error, extra=about(claim))
            return
        if not delivered:
            return
        delivery = deliver(runtime, queue, claim)
        work = work_of(delivery)
        try:
            try:
                await self._handler(delivery)
            except Exception as error:  # noqa: BLE001 - logged, and recorded for the next attempt
                await self._failed(delivery, claim, error)
            except BaseException as error:  # a cancellation, or an error that ends the listener too
                if isinstance(error, asyncio.CancelledError) and not _task_is_cancelled():
                    await self._failed(delivery, claim, _as_failure(error))
                    return
                if work.open:
                    await settle_failed(delivery, error)
                raise
            if work.open:
                await commit_or_leave(work)
        except PASSING as error:
            context = about(claim, work_of(delivery).id)
            log.warning("queue %s: %s is redelivered: %s", self._queue.name, delivery.id, error, extra=context)
        except SessionClosedError:
            raise
        except QueueError:
            context = about(claim, work_of(delivery).id)
            log.exception("queue %s: message %s could not be settled", self._queue.name, delivery.id, extra=context)

    async def _failed(self, delivery: Delivery[object], claim: Claim, error: Exception) -> None:
        """Settle a delivery whose handler failed."""
        if not isinstance(error, Retry | Reject):
            log.warning(
                "queue %s: handler failed on message %s, attempt %d: %s",
                self._queue.name,
                delivery.id,
                claim.attempt,
                work_of(delivery).predict_disposition(claim, describe(error)),
                exc_info=error,
                extra=about(claim, work_of(delivery).id),
            )
        if delivery.outcome is Outcome.OPEN:
            await settle_failed(delivery, error)

    def _state_changed(self, state: State, generation: int) -> None:
        if self._on_lost != "cancel" or state not in (State.LOST, State.CONNECTED):
            return
        for scope, generation_of_claim in list(self._scopes.items()):
            if state is State.LOST or generation_of_claim != generation:
                scope.cancel()


def _task_is_cancelled() -> bool:
    """Whether the running task itself is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _as_failure(error: asyncio.CancelledError) -> RuntimeError:
    """Return the failure of a handler that let a foreign CancelledError escape, which must not end the listener."""
    failure = RuntimeError("the handler was not cancelled, but something that it waited for was")
    failure.__cause__ = error
    return failure
