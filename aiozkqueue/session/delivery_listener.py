"""Listeners whose handler takes single deliveries."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar

from aiozkqueue.errors import QueueError, SessionClosedError, SessionExpiredError
from aiozkqueue.queue.claim.deliver import deliver_claims, deliver_claims_now

from .cancellations import failure_of
from .delivery import delivery_of
from .failures import failure_logged, log_unsettled
from .handler import time_limits
from .internals import settle_failed, work_of
from .listener import Listener
from .middleware import wrapped
from .undo import commit_or_undo
from .unit_of_work import current_work

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import anyio.abc

    from aiozkqueue.queue.claim.dispatcher import ClaimDispatcher
    from aiozkqueue.queue.claim.waiters import Waiter
    from aiozkqueue.queue.destination import Destination
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.rates.pace import Pace

    from .alarms import OnDead
    from .core import SessionCore
    from .delivery import Delivery
    from .listener_options import ListenerSettings

log: Final = logging.getLogger(__name__)

T_co = TypeVar("T_co", covariant=True)


class DeliveryListener(Listener[T_co]):
    """Calls ``handler(delivery)`` for each message."""

    def __init__(
        self,
        runtime: SessionCore,
        queue: Destination[T_co],
        handler: Callable[[Delivery[T_co]], Awaitable[None]],
        settings: ListenerSettings,
        on_dead: OnDead[T_co] | None,
    ) -> None:
        super().__init__(runtime, queue, handler, settings, on_dead)
        self._handler = wrapped(handler, [*time_limits(runtime.clock, settings.timeout), *settings.middleware])

    async def _claim_and_start(self, handlers: anyio.abc.TaskGroup) -> None:
        """Request claims for slots as they become free, without waiting for earlier requests."""
        dispatcher = self._use_dispatcher()
        if self._pace is not None:
            await self._claim_at_pace(dispatcher, self._pace, handlers)
            return
        waiters: list[Waiter] = []
        requested = 0
        try:
            while not self._stopped.is_set():
                for waiter in [waiter for waiter in waiters if waiter.over]:
                    waiters.remove(waiter)
                    requested -= waiter.limit
                    self._start(waiter.future.result(), handlers)
                free = self._settings.concurrency - self._busy - requested
                if free > 0:
                    if not (waiters and dispatcher.request_more(waiters[-1], free)):
                        waiters.append(dispatcher.request(free))
                        waiters[-1].future.add_done_callback(self._answered)
                    requested += free
                self._wake.clear()
                await self._wake.wait()
        finally:
            for waiter in waiters:  # some may have been answered at the same moment
                dispatcher.cancel_request(waiter)

    async def _claim_at_pace(self, dispatcher: ClaimDispatcher, pace: Pace, handlers: anyio.abc.TaskGroup) -> None:
        """Claim messages only when their handlers may begin soon."""
        while free := await self._free():
            reserved = await pace.reserve(free)
            claims = deque(await self._await_claims(dispatcher, dispatcher.request(max(1, reserved))))
            try:
                while claims and await pace.admit():
                    self._start([claims.popleft()], handlers)
            finally:
                dispatcher.releases.release(list(claims))

    async def _deliver(self, claim: Claim) -> None:  # noqa: C901, PLR0912 - one function call less for each message
        runtime, queue, running = self._runtime, self._queue, self._interruptions.running
        try:
            delivered = deliver_claims_now(runtime, queue, [claim])
            if delivered is None:
                delivered = await deliver_claims(runtime, queue, [claim], self._reply_limit)
        except SessionExpiredError as error:
            log.info("%s", error, extra=claim.log_ids())
            return
        if not delivered:
            return
        delivery = delivery_of(runtime, queue, claim)
        work = work_of(delivery)
        if self._interruptions.cancelled and self._interruptions.cancelled_before_start(claim):
            work.rollback_nowait()
            return
        outer = current_work.set(work)
        handling = None if runtime.tracing is None else runtime.tracing.handling(delivery)
        failure: BaseException | None = None
        try:
            try:
                running[claim] = asyncio.current_task(runtime.committer.loop)  # to ask for the loop is a system call
                try:
                    await self._handler(delivery)
                finally:
                    running.pop(claim, None)
            except BaseException as error:
                failure = error
                if not await self._settle_failed(delivery, error):
                    raise
            else:
                if work.open:
                    await commit_or_undo(work)
                self._counts.handled += 1
        except SessionClosedError:
            raise
        except QueueError as error:
            failure = error
            log_unsettled(work, error)
        finally:
            current_work.reset(outer)
            if handling is not None:
                handling.end(failure)
            failure = None  # its traceback refers to this frame: a cycle would burden the garbage collector

    async def _settle_failed(self, delivery: Delivery[object], error: BaseException) -> bool:
        """Settle a delivery by the error of its handler; return False if the error ends the listener too."""
        work, failure = work_of(delivery), failure_of(error)
        if failure is None:
            if work.open:
                await settle_failed(delivery, error)
            return False
        self._counts.failed += 1
        with failure_logged(work, failure):
            if work.open:
                await settle_failed(delivery, failure)
        return True
