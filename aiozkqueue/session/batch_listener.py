"""Listeners whose handler takes batches: up to a number of messages, or those of a short time."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, TypeVar

from aiozkqueue.errors import QueueError, SessionClosedError, SessionExpiredError
from aiozkqueue.queue.claim.deliver import deliver_claims, deliver_claims_now
from aiozkqueue.queue.commit.dispositions import CONSUME
from aiozkqueue.queue.commit.end_claims import weigh

from .batch import BatchWork
from .cancellations import failure_of
from .failures import failure_logged, log_unsettled
from .handler import time_limits
from .listener import Listener
from .middleware import wrapped
from .undo import undo
from .unit_of_work import current_work

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import anyio.abc

    from aiozkqueue.queue.claim.dispatcher import ClaimDispatcher
    from aiozkqueue.queue.destination import Destination
    from aiozkqueue.queue.state.claim import Claim

    from .alarms import OnDead
    from .batch import Batch
    from .core import SessionCore
    from .listener_options import BatchSize, ListenerSettings

log: Final = logging.getLogger(__name__)

T_co = TypeVar("T_co", covariant=True)


class BatchListener(Listener[T_co]):
    """Calls ``handler(batch)`` for several messages, up to ``concurrency`` batches at a time."""

    def __init__(
        self,
        runtime: SessionCore,
        queue: Destination[T_co],
        handler: Callable[[Batch[T_co]], Awaitable[None]],
        settings: ListenerSettings,
        *,
        size: BatchSize,
        on_dead: OnDead[T_co] | None,
    ) -> None:
        super().__init__(runtime, queue, handler, settings, on_dead, lead=size.wait)
        self._size = size
        self._handler = wrapped(handler, time_limits(runtime.clock, settings.timeout))
        self._batches: dict[Claim, list[Claim]] = {}
        """The batches that no task has started yet, by their first message."""

    # -- claiming

    async def _claim_and_start(self, handlers: anyio.abc.TaskGroup) -> None:
        """Collect one batch at a time while a handler is free."""
        dispatcher = self._use_dispatcher()
        while await self._free():
            if self._pace is not None:
                await self._pace.reserve(1)
            claims = await self._collect(dispatcher)
            if claims and await self._may_begin(dispatcher, claims):
                self._batches[claims[0]] = claims
                self._start(claims[:1], handlers)

    async def _may_begin(self, dispatcher: ClaimDispatcher, claims: list[Claim]) -> bool:
        """Wait until the handler may be called with a batch; if that is not soon, release it and return False."""
        admitted = False
        try:
            admitted = self._pace is None or await self._pace.admit()
        finally:
            if not admitted:
                dispatcher.releases.release(claims)
        return admitted

    async def _collect(self, dispatcher: ClaimDispatcher) -> list[Claim]:
        """Return the messages of the next batch; none if the listener stops or their session ends in the meantime."""
        collected: list[Claim] = []
        due, clock = 0.0, self._runtime.clock
        try:
            while len(collected) < self._size.limit and not self._stopped.is_set():
                left = due - clock.monotonic() if collected else None
                if left is not None and left <= 0:
                    break
                wanted = self._size.limit - len(collected)
                generation = collected[0].generation if collected else None
                waiter = dispatcher.request(wanted, left, generation=generation)
                claims = await self._await_claims(dispatcher, waiter)
                if not collected:
                    due = self._due(clock.monotonic())
                collected += claims
        except SessionExpiredError:
            return []  # the locks have ended with the session
        except BaseException:
            dispatcher.releases.release(collected)
            raise
        if self._stopped.is_set():
            dispatcher.releases.release(collected)
            return []
        return self._fitting(dispatcher, collected)

    def _due(self, now: float) -> float:
        """Return when a batch whose first message has just been taken is complete: by its slot, if it has one."""
        slot = None if self._pace is None else self._pace.moment
        return now + self._size.wait if slot is None else min(now + self._size.wait, max(now, slot))

    def _fitting(self, dispatcher: ClaimDispatcher, claims: list[Claim]) -> list[Claim]:
        """Return as many of the claims as one commit can end, and release the others."""
        weight = fitting = 0
        for claim in claims:
            weight += weigh(claim, CONSUME)
            if fitting and weight > self._runtime.safe_size:
                break
            fitting += 1
        dispatcher.releases.release(claims[fitting:])
        return claims[:fitting]

    def _unstarted(self, jobs: list[Claim]) -> list[Claim]:
        batches, self._batches = self._batches, {}
        return [claim for job in jobs for claim in batches[job]]

    # -- handling

    async def _deliver(self, claim: Claim) -> None:
        claims = self._batches.pop(claim)
        try:
            delivered = deliver_claims_now(self._runtime, self._queue, claims)
            if delivered is None:
                delivered = await deliver_claims(self._runtime, self._queue, claims, self._reply_limit)
        except SessionExpiredError as error:
            log.info("%s", error, extra={"queue": self._queue.name})
            return
        if cancelled := [claim for claim in delivered if self._interruptions.cancelled_before_start(claim)]:
            BatchWork(self._runtime, self._queue, cancelled).work.rollback_nowait()
            delivered = [claim for claim in delivered if claim not in cancelled]
        if not delivered:
            return
        held = BatchWork(self._runtime, self._queue, delivered)
        try:
            await self._handle_batch(held)
        except SessionClosedError:
            raise
        except QueueError as error:
            log_unsettled(held.work, error)

    async def _handle_batch(self, held: BatchWork) -> None:
        """Call the handler, and settle its batch, in a trace. Raises: the error of the commit."""
        batch, tracing = held.batch(), self._runtime.tracing
        handling = None if tracing is None else tracing.processing(batch.queue, batch)
        outer = current_work.set(held.work)
        failure: BaseException | None = None
        try:
            await self._call(batch, held.claims)
            committed = await held.finish(batch)
            self._counts.handled += committed
            self._counts.failed += len(held.claims) - committed
        except BaseException as error:
            failure = error
            if not (held.work.open and await self._settle_failed(held, error)):
                raise
        finally:
            current_work.reset(outer)
            if handling is not None:
                handling.end(failure)
            failure = None  # its traceback refers to this frame: a cycle would burden the garbage collector

    async def _call(self, batch: Batch[T_co], claims: list[Claim]) -> None:
        """Call the handler, whose task is cancelled if one of its messages is."""
        running = self._interruptions.running
        running.update(dict.fromkeys(claims, asyncio.current_task()))
        try:
            await self._handler(batch)
        finally:
            for claim in claims:
                running.pop(claim, None)

    async def _settle_failed(self, held: BatchWork, error: BaseException) -> bool:
        """Settle a batch by the error of its handler; return False if the error ends the listener too."""
        failure = failure_of(error)
        if failure is None:
            await undo(held.work, error)
            return False
        self._counts.failed += len(held.claims)
        with failure_logged(held.work, failure):
            await held.fail(failure)
        return True
