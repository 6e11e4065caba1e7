"""``async for delivery in queue.consume(...)``.

RUNNING ◀──▶ IDLE ──stop──▶ STOPPED ──close──▶ CLOSED

A loop that is running can be stopped too, and any loop can be closed. `Consumer._move` is the only function that
changes the state.
"""

from __future__ import annotations

import asyncio
import enum
import math
import warnings
from collections import deque
from typing import TYPE_CHECKING, Generic, Literal, Self, TypeVar

from aiozkqueue.errors import ImplicitSettleWarning, SessionExpiredError
from aiozkqueue.queue.claim.deliver import deliver_claims, deliver_claims_now
from aiozkqueue.queue.claim.prefetch import PACE, Prefetcher
from aiozkqueue.queue.commit.failures import unknown
from aiozkqueue.queue.outcome import Outcome
from aiozkqueue.runtime.tasks import wait_settled

from .delivery import Delivery, delivery_of
from .failures import log_unsettled
from .internals import was_entered, work_of
from .undo import commit_or_undo, undo
from .unit_of_work import REDELIVERY_ERRORS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

    from aiozkqueue.layout import Condition
    from aiozkqueue.queue.commit.write import AtomicWrite
    from aiozkqueue.queue.destination import Destination
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.runtime.clock import Clock, Timer

    from .core import SessionCore
    from .tracing import Handling
    from .unit_of_work import UnitOfWork

T = TypeVar("T")

#: Iterations of the event loop until a request for claims, and the commits begun before it, have been sent.
TURNS_TO_SEND = 3
#: The maximum number of pending commits, as a multiple of the prefetch. Commits about a bundle follow each other: while
#: one multi is in progress, the loop fills the next. With 1, a loop without waits does a fourth fewer per second.
PENDING_FACTOR = 2


class LoopState(enum.Enum):
    """Where a loop is between its first message and its end."""

    RUNNING = enum.auto()
    IDLE = enum.auto()
    """No message has arrived for ``until_idle`` seconds. The loop ends, unless it may have put one itself."""
    STOPPED = enum.auto()
    """It claims nothing more, and ends when it asks for the next message."""
    CLOSED = enum.auto()


# Constants, because looking up an enum member takes as long as the comparison, and this runs for every message.
_RUNNING, _IDLE, _STOPPED, _CLOSED = LoopState.RUNNING, LoopState.IDLE, LoopState.STOPPED, LoopState.CLOSED

_MOVES: dict[LoopState, tuple[LoopState, ...]] = {
    _RUNNING: (_IDLE, _STOPPED, _CLOSED),
    _IDLE: (_RUNNING, _STOPPED, _CLOSED),
    _STOPPED: (_CLOSED,),
    _CLOSED: (),
}


class Consumer(Generic[T]):
    """Iterates over the messages of a queue.

    A delivery that the loop body has not settled is committed when the loop asks for the next one. If the loop ends
    with ``break``, an exception or a cancellation, the delivery is rolled back. This is reliable only in ``async with
    queue.consume() as deliveries``: without it, the time depends on when Python closes the loop. The loop continues
    after lost connections and sessions.
    """

    def __init__(
        self,
        runtime: SessionCore,
        queue: Destination[T],
        *,
        prefetch: int,
        settle: Literal["next", "explicit"],
        until_idle: float | None,
        condition: Condition | None = None,
    ) -> None:
        self._runtime = runtime
        self._queue = queue
        self._prefetch = prefetch
        self._settle = settle
        self._until_idle = until_idle
        self._prefetcher = Prefetcher(
            runtime.handle(queue.name), prefetch, blocking=until_idle != 0, condition=condition
        )
        self._state = _RUNNING
        self._answer_outdated = False  # whether the loop has acted since the request, so its answer may be out of date
        self._waiting = False  # whether a task waits for the next delivery
        self._current: Delivery[T] | None = None
        self._handling: Handling | None = None
        self._commits = _PendingCommits(runtime.clock)
        self._idle_timer: Timer | None = None

    def __repr__(self) -> str:
        return f"<Consumer of queue {self._queue.name!r}>"

    def __aiter__(self) -> AsyncIterator[Delivery[T]]:
        return self

    async def __anext__(self) -> Delivery[T]:  # noqa: C901 - one function call less for each message
        """Settle the last delivery, and wait for the next one.

        Raises: StopAsyncIteration: the loop was stopped, closed, or idle for ``until_idle`` seconds. AccessDeniedError,
            PayloadError, ConfigConflictError, OutcomeUnknownError, SessionClosedError, WrongLoopError.
            RuntimeError: another task waits for the next one; only with ``settle="explicit"`` tasks may share a loop.
        """
        if self._state is _CLOSED:
            raise StopAsyncIteration
        self._runtime.check()
        self._begin_wait()
        try:
            if self._prefetcher.asking:
                self._answer_outdated = True
            if self._handling is None:
                await self._settle_current()
            else:
                await self._end_handling()
            self._report()
            while True:
                claim = await self._next_claim()
                if claim is None:
                    if not await self._may_have_more():
                        break
                    self._report()
                    continue
                try:
                    delivered = deliver_claims_now(self._runtime, self._queue, [claim])
                    if delivered is None:
                        delivered = await deliver_claims(self._runtime, self._queue, [claim])
                except SessionExpiredError:
                    continue  # it is redelivered; a loop outlives its ZooKeeper sessions
                if delivered:
                    return self._begin(claim)
            await self.aclose()
            raise StopAsyncIteration
        except asyncio.CancelledError:
            self._prefetcher.abandon()  # the loop may never be closed; if it continues, it claims again
            raise
        finally:
            self._waiting = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close(error)

    def stop(self) -> None:
        """End the loop when it asks for the next message; claim no more. Idempotent."""
        if self._state is _RUNNING or self._state is _IDLE:
            self._move(_STOPPED)
            self._prefetcher.changed.set()

    async def aclose(self) -> None:
        """Roll back the current delivery, release prefetched messages, and wait for pending commits. Idempotent.

        Raises:
            OutcomeUnknownError: a commit is not answered within one session timeout; it continues.
        """
        await self._close(None)

    # -- settling

    def _begin_wait(self) -> None:
        """Record that a task asks for the next delivery, unless another one does: both would replace the current one.

        Raises: RuntimeError.
        """
        if self._waiting and self._settle == "next":
            msg = (
                f"a loop of queue {self._queue.name!r} already waits for a message in another task, and settles only "
                "one delivery at a time; call consume() in each task, or use a listener"
            )
            raise RuntimeError(msg)
        self._waiting = True

    def _begin(self, claim: Claim) -> Delivery[T]:
        """Make a claim the current delivery."""
        delivery = delivery_of(self._runtime, self._queue, claim)
        self._current = delivery
        if self._runtime.tracing is not None:
            self._handling = self._runtime.tracing.handling(delivery)
        return delivery

    async def _end_handling(self) -> None:
        """Settle the previous delivery, and end its trace."""
        handling, self._handling = self._handling, None
        try:
            await self._settle_current()
        except BaseException as error:
            if handling is not None:
                handling.end(error)
            raise
        if handling is not None:
            handling.end()

    async def _settle_current(self) -> None:
        """Settle the previous delivery."""
        delivery, self._current = self._current, None
        if delivery is None:
            return
        self._prefetcher.finished()
        work = work_of(delivery)
        if was_entered(delivery) or work.outcome is not Outcome.OPEN:
            return
        if self._settle == "explicit":
            self._runtime.left_open.add(work)
        else:
            await self._commit_implicitly(work)

    async def _commit_implicitly(self, work: UnitOfWork) -> None:
        """Commit a delivery that the loop body has not settled: in the background if it is a loop with prefetch."""
        atomic_write = None
        try:
            while len(self._commits.in_progress) >= PENDING_FACTOR * self._prefetch:
                self._commits.landed.clear()
                await self._commits.landed.wait()
            # Capacity in the target queues is reserved only now: pending commits may wait for it.
            pipelined = self._prefetch > 1 and work.make_ready_now()
            if pipelined:
                atomic_write = work.begin_commit()
        except BaseException as error:  # no other object holds this delivery
            if work.outcome is Outcome.OPEN:
                await undo(work, error)
            raise
        if not pipelined:
            try:
                await commit_or_undo(work)
            except REDELIVERY_ERRORS as error:
                self._commits.failures.append((work, error))
        elif atomic_write is not None:
            self._commits.in_progress[atomic_write] = work
            atomic_write.watch(self._commits.land)

    def _warn_of_redelivery(self, work: UnitOfWork, error: BaseException) -> None:
        """Report a delivery that the loop could not commit."""
        log_unsettled(work, error)
        warnings.warn(
            # Without the message and the error, which are in the log: Python keeps every text that it has shown.
            f"a delivery of queue {self._queue.name!r} could not be committed when the loop asked for the next one, "
            "and is redelivered; the log has the reason",
            ImplicitSettleWarning,
            stacklevel=4,
        )

    def _report(self) -> None:
        """Raise the errors of implicit commits; the rest are reported by the next call."""
        failures = self._commits.failures
        while failures:
            work, failure = failures.popleft()
            if not isinstance(failure, REDELIVERY_ERRORS):
                raise failure
            self._warn_of_redelivery(work, failure)

    # -- claiming

    async def _next_claim(self) -> Claim | None:
        """Wait for the next claim; None when stopped, or idle for long enough."""
        if self._state is _IDLE:
            self._move(_RUNNING)
        prefetcher = self._prefetcher
        try:
            while self._state is _RUNNING or self._state is _IDLE:
                if prefetcher.collect():
                    self._became_idle()
                prefetcher.forget_lost()
                if self._state is _IDLE and not prefetcher.ready:
                    return None
                if prefetcher.ask():
                    self._answer_outdated = bool(self._commits.in_progress)
                    if prefetcher.ready:
                        await _until_sent()
                        continue
                if prefetcher.ready:
                    return prefetcher.ready.popleft()
                self._start_idle_timer()
                prefetcher.changed.clear()
                if not prefetcher.answered:
                    await self._await_change()
            return None
        finally:
            if self._idle_timer is not None:
                self._idle_timer.cancel()
                self._idle_timer = None

    async def _await_change(self) -> None:
        """Wait for an answer, or until the claim window of an inactive loop must shrink."""
        prefetcher = self._prefetcher
        slower = self._runtime.clock.call_later(PACE, prefetcher.changed.set) if prefetcher.excessive else None
        try:
            await prefetcher.changed.wait()
        finally:
            if slower is not None:
                slower.cancel()

    async def _may_have_more(self) -> bool:
        """Wait for pending commits; return whether the queue may hold messages that the loop has not found yet."""
        if self._state is not _IDLE:
            return False
        commits = self._commits
        outdated = self._answer_outdated if self._until_idle == 0 else bool(commits.in_progress)
        while commits.in_progress:
            commits.landed.clear()
            await commits.landed.wait()
        for work, _ in commits.failures:
            await work.rollback()  # it has begun, and ends once its message can be taken
        return bool(commits.failures) or outdated

    def _start_idle_timer(self) -> None:
        if self._until_idle and self._idle_timer is None:
            self._idle_timer = self._runtime.clock.call_later(self._until_idle, self._end_if_idle)

    def _end_if_idle(self) -> None:
        """End the wait for a message, unless a commit has ended during it, which may have put one into this queue."""
        clock, seconds = self._runtime.clock, self._until_idle or 0
        left = self._commits.ended + seconds - clock.monotonic()
        if left > 0:
            self._idle_timer = clock.call_later(left, self._end_if_idle)
        else:
            self._became_idle()

    def _became_idle(self) -> None:
        if self._state is _RUNNING:
            self._move(_IDLE)
        self._prefetcher.changed.set()

    def _move(self, state: LoopState) -> None:
        if state not in _MOVES[self._state]:
            msg = f"a loop cannot move from {self._state.name} to {state.name}"
            raise AssertionError(msg)
        self._state = state

    # -- closing

    async def _close(self, error: BaseException | None) -> None:
        if self._state is _CLOSED:
            return
        self._move(_CLOSED)
        try:
            await self._finish(error)
            if error is None:
                self._report()
        finally:
            self._commits.abandon()

    async def _finish(self, error: BaseException | None) -> None:
        released = self._prefetcher.abandon()
        delivery, self._current = self._current, None
        handling, self._handling = self._handling, None
        try:
            if delivery is not None and not was_entered(delivery) and work_of(delivery).outcome is Outcome.OPEN:
                work = work_of(delivery)
                if self._settle == "next":
                    await undo(work, error)
                elif error is None or isinstance(error, Exception):  # a cancelled program settles nothing
                    self._runtime.left_open.add(work)
        finally:
            if handling is not None:
                handling.end(error)
            await self._await_commits(error, released)
            await self._prefetcher.await_releases()

    async def _await_commits(self, error: BaseException | None, released: asyncio.Future[None] | None) -> None:
        """Wait for pending commits and releases, one session timeout in total; they continue without the loop."""
        in_progress = list(self._commits.in_progress.items())
        waited_for = [commit.done for commit, _ in in_progress]
        if released is not None:
            waited_for.append(released)
        grace = self._runtime.grace
        if waited_for:
            await wait_settled(asyncio.gather(*waited_for, return_exceptions=True), limit=grace)
        for commit, work in in_progress:
            if not commit.settled and error is None:
                raise unknown(work.id, f"no answer within {grace:.3g} s")

    def __del__(self) -> None:
        """Clean up a loop that was left without ``async with``: nothing can be awaited here."""
        delivery = self._current
        open_delivery = (
            delivery is not None
            and not was_entered(delivery)
            and self._settle == "next"
            and delivery.outcome is Outcome.OPEN
        )
        if self._handling is not None:
            self._handling.end()
        self._commits.abandon()
        if self._state is _CLOSED or not (open_delivery or self._prefetcher.ready or self._prefetcher.asking):
            return
        try:
            asyncio.get_running_loop()
            self._prefetcher.abandon()
            if delivery is not None and open_delivery:
                work_of(delivery).rollback_nowait()
        except RuntimeError:
            pass  # no event loop is running any more: the locks end with the session
        warnings.warn(
            f"a consumer of queue {self._queue.name!r} was not closed; its message is redelivered; "
            "use `async with queue.consume() as deliveries`",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )


async def _until_sent() -> None:
    """Let the event loop send a request for claims before a body without waits uses up all ready messages."""
    for _ in range(TURNS_TO_SEND):
        await asyncio.sleep(0)


class _PendingCommits:
    """The pending commits. They refer to this object and not to the consumer, which they would keep alive."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._abandoned = False
        self.ended = -math.inf
        """When the last one ended, by the monotonic clock."""
        self.in_progress: dict[AtomicWrite, UnitOfWork] = {}
        self.failures: deque[tuple[UnitOfWork, BaseException]] = deque()
        self.landed = asyncio.Event()

    def land(self, commit: AtomicWrite) -> None:
        """Record that a commit has ended."""
        work = self.in_progress.pop(commit)
        self.ended = self._clock.monotonic()
        if commit.error is not None:
            self.failures.append((work, commit.error))
            if self._abandoned:
                self.abandon()
        self.landed.set()

    def abandon(self) -> None:
        """Log the failures, now and later, because no loop raises them."""
        self._abandoned = True
        while self.failures:
            log_unsettled(*self.failures.popleft())
