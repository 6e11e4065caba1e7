"""``async for delivery in queue.consume(...)``."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, Literal, Self, TypeVar

from aiozkqueue.errors import ImplicitSettleWarning, SessionExpiredError

from .claim.prefetch import PACE, Prefetcher
from .commit.group_commit import unknown
from .delivery import Delivery, WorkSettling, deliver
from .outcome import Outcome
from .redelivery.attempts import deliver_claims, deliver_claims_now
from .runtime.log_context import about
from .runtime.tasks import wait_settled
from .transaction import commit_or_leave, leave
from .unit_of_work import PASSING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

    from aiozkqueue.layout import Condition

    from .commit.write import AtomicWrite
    from .destination import Destination
    from .runtime.clock import Timer
    from .session_core import SessionCore
    from .state.claim import Claim
    from .tracing import Handling
    from .unit_of_work import UnitOfWork

T = TypeVar("T")

log: Final = logging.getLogger(__name__)

#: Turns of the event loop that it takes until a request for claims, and the commits begun before it, are on their way.
TURNS_TO_SEND = 3


class Consumer(Generic[T]):
    """The messages of a queue, one after the other.

    A delivery that the loop body has not settled is committed when the loop asks for the next one; left by ``break``,
    an exception or a cancellation, it is rolled back: for certain under ``async with queue.consume() as deliveries``,
    as well as Python allows without it. Goes on by itself after lost connections and sessions.
    """

    def __init__(
        self,
        engine: SessionCore,
        queue: Destination[T],
        *,
        prefetch: int,
        settle: Literal["next", "explicit"],
        until_idle: float | None,
        condition: Condition | None = None,
    ) -> None:
        self._engine = engine
        self._queue = queue
        self._prefetch = prefetch
        self._settle = settle
        self._until_idle = until_idle
        self._ahead = Prefetcher(
            engine, engine.store(queue.name), prefetch, patient=until_idle != 0, condition=condition
        )
        self._overtaken = False  # whether the loop has done something since, or still does, that an answer lacks
        self._current: Delivery[T] | None = None
        self._handling: Handling | None = None
        self._commits = _Commits(queue.name)
        self._idle = False
        self._stopped = False
        self._closed = False
        self.absorbed: int = 0
        """How many deliveries that the loop settled by itself could not be committed, and come again."""

    def __aiter__(self) -> AsyncIterator[Delivery[T]]:
        return self

    async def __anext__(self) -> Delivery[T]:
        """Settle the last delivery, and wait for the next.

        Raises:
            StopAsyncIteration: stopped, closed, or idle for ``until_idle`` seconds.
            AccessDeniedError, ConfigConflictError, OutcomeUnknownError, SessionClosedError, WrongLoopError.
        """
        if self._closed:
            raise StopAsyncIteration
        self._engine.check()
        if self._ahead.asking:
            self._overtaken = True
        if self._handling is None:
            await self._settle_current()
        else:
            await self._end_handling()
        self._report()
        while not self._stopped:
            claim = await self._next_claim()
            if claim is None:
                if not await self._may_have_more():
                    break
                self._report()
                continue
            try:
                shown = deliver_claims_now(self._engine, self._queue, [claim])
                if shown is None:
                    shown = await deliver_claims(self._engine, self._queue, [claim])
            except SessionExpiredError:
                continue  # others have it now; a loop outlives its ZooKeeper sessions
            if shown:
                return self._begin(claim)
        await self.aclose()
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close(error)

    def stop(self) -> None:
        """End the loop when it asks for the next message; nothing more is claimed. Idempotent."""
        self._stopped = True
        self._ahead.changed.set()

    async def aclose(self) -> None:
        """Roll back the delivery in hand, give back what was claimed ahead, wait for commits under way. Idempotent.

        Raises:
            OutcomeUnknownError: a commit is not answered within one session timeout; it goes on.
        """
        await self._close(None)

    # -- settling

    def _begin(self, claim: Claim) -> Delivery[T]:
        """Give the loop a message in hand."""
        delivery = deliver(self._engine, self._queue, claim)
        self._current = delivery
        if self._engine.tracing is not None:
            self._handling = self._engine.tracing.handling(delivery)
        return delivery

    async def _end_handling(self) -> None:
        """Decide the delivery that the loop has left behind, and tell who follows it."""
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
        """Decide the delivery that the loop has left behind."""
        delivery, self._current = self._current, None
        if delivery is None:
            return
        self._ahead.finished()
        work = _work(delivery)
        if delivery.entered or self._settle == "explicit" or work.outcome is not Outcome.OPEN:
            return
        atomic_write = None
        try:
            while len(self._commits.under_way) >= self._prefetch:
                self._commits.landed.clear()
                await self._commits.landed.wait()
            # Takes room in the queues put to, for which commits under way may wait: so not before one has landed.
            alone = self._prefetch == 1 or not work.ready
            if not alone:
                atomic_write = work.begin_commit()
        except BaseException as error:  # nobody else holds this delivery any more
            if work.outcome is Outcome.OPEN:
                await leave(work, error)
            raise
        if alone:
            try:
                await commit_or_leave(work)
            except PASSING as error:
                self._absorb(error)
        elif atomic_write is not None:
            self._commits.under_way[atomic_write] = work
            atomic_write.watch(self._commits.land)

    def _absorb(self, error: BaseException) -> None:
        self.absorbed += 1
        warnings.warn(f"{error}", ImplicitSettleWarning, stacklevel=4)

    def _report(self) -> None:
        """Tell of commits that failed behind the loop's back: what is raised leaves the rest to the next call."""
        failures = self._commits.failures
        while failures:
            _, failure = failures.popleft()
            if not isinstance(failure, PASSING):
                raise failure
            self._absorb(failure)

    # -- claiming

    async def _next_claim(self) -> Claim | None:
        """Wait for the next claim; None when stopped or idle for long enough."""
        self._idle = False
        ahead, clock = self._ahead, self._engine.clock
        idle: Timer | None = None
        try:
            while not self._stopped:
                if ahead.collect():
                    self._became_idle()
                ahead.forget_lost()
                if self._idle and not ahead.ready:
                    return None
                if ahead.ask():
                    self._overtaken = bool(self._commits.under_way)
                    if ahead.ready:
                        await _sent()
                        continue
                if ahead.ready:
                    return ahead.ready.popleft()
                if self._until_idle and idle is None:
                    idle = clock.call_later(self._until_idle, self._became_idle)
                ahead.changed.clear()
                if not ahead.answered:
                    await self._await_change()
            return None
        finally:
            if idle is not None:
                idle.cancel()

    async def _await_change(self) -> None:
        """Wait for an answer, and for no longer than it takes until a loop that finishes nothing may have less."""
        ahead = self._ahead
        slower = self._engine.clock.call_later(PACE, ahead.changed.set) if ahead.excessive else None
        try:
            await ahead.changed.wait()
        finally:
            if slower is not None:
                slower.cancel()

    async def _may_have_more(self) -> bool:
        """Wait for the commits under way; tell whether the loop may have left a message that it has not looked for."""
        if self._stopped:
            return False
        commits = self._commits
        while commits.under_way:
            commits.landed.clear()
            await commits.landed.wait()
        for work, _ in commits.failures:
            await work.rollback()  # has been begun, and is over when its message can be taken
        return bool(commits.failures) or (self._until_idle == 0 and self._overtaken)

    def _became_idle(self) -> None:
        self._idle = True
        self._ahead.changed.set()

    # -- closing

    async def _close(self, error: BaseException | None) -> None:
        if self._closed:
            return
        self._closed = self._stopped = True
        try:
            await self._finish(error)
            if error is None:
                self._report()
        finally:
            self.absorbed += self._commits.leave()

    async def _finish(self, error: BaseException | None) -> None:
        released = self._ahead.abandon()
        delivery, self._current = self._current, None
        handling, self._handling = self._handling, None
        try:
            if delivery is not None and not delivery.entered and self._settle == "next":
                work = _work(delivery)
                if work.outcome is Outcome.OPEN:
                    await leave(work, error)
        finally:
            if handling is not None:
                handling.end(error)
            await self._await_commits(error, released)

    async def _await_commits(self, error: BaseException | None, released: asyncio.Future[None] | None) -> None:
        """Wait for commits and releases under way, for one session timeout in all: they go on without the loop."""
        under_way = list(self._commits.under_way.items())
        awaited = [commit.done for commit, _ in under_way]
        if released is not None:
            awaited.append(released)
        if awaited:
            await wait_settled(asyncio.gather(*awaited, return_exceptions=True), limit=self._engine.grace)
        for commit, work in under_way:
            if not commit.settled and error is None:
                raise unknown(work.id, f"no answer within {self._engine.grace:g} s")

    def __del__(self) -> None:
        """Do what can be done for a loop that was left without ``async with``: nobody awaits anything here."""
        delivery = self._current
        open_delivery = (
            delivery is not None
            and not delivery.entered
            and self._settle == "next"
            and delivery.outcome is Outcome.OPEN
        )
        if self._handling is not None:
            self._handling.end()
        self._commits.leave()
        if self._closed or not (open_delivery or self._ahead.ready or self._ahead.asking):
            return
        try:
            asyncio.get_running_loop()
            self._ahead.abandon()
            if delivery is not None and open_delivery:
                _work(delivery).release_nowait()
        except RuntimeError:
            pass  # no loop runs here any more: the locks go with the session
        warnings.warn(
            f"a consumer of queue {self._queue.name!r} was left without being closed; its message goes back; "
            "use `async with queue.consume() as deliveries`",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )


async def _sent() -> None:
    """Let a request for claims go out: a body that awaits nothing would use up what is ready before that."""
    for _ in range(TURNS_TO_SEND):
        await asyncio.sleep(0)


class _Commits:
    """The commits under way. They know this, not the consumer: they must not keep a forgotten one alive."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._left = False
        self.under_way: dict[AtomicWrite, UnitOfWork] = {}
        self.failures: deque[tuple[UnitOfWork, BaseException]] = deque()
        self.landed = asyncio.Event()

    def land(self, commit: AtomicWrite) -> None:
        """One has come to its end."""
        work = self.under_way.pop(commit)
        if commit.error is not None:
            self.failures.append((work, commit.error))
            if self._left:
                self.leave()
        self.landed.set()

    def leave(self) -> int:
        """Log what has failed, and from now on what fails, since no loop asks; return how many come again as usual."""
        self._left = True
        passing = 0
        while self.failures:
            work, failure = self.failures.popleft()
            [claim] = work.claims
            told = about(claim, work.id)
            if isinstance(failure, PASSING):
                passing += 1
                log.warning("queue %s: %s comes again: %s", self._queue, claim.id, failure, extra=told)
            else:
                words = "queue %s: message %s could not be settled"
                log.error(words, self._queue, claim.id, exc_info=failure, extra=told)
        return passing


def _work(delivery: Delivery[T]) -> UnitOfWork:
    settling = delivery._settling  # noqa: SLF001 - a consumer's deliveries are of its own making
    assert isinstance(settling, WorkSettling)  # noqa: S101
    return settling.work
