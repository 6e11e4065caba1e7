"""The prefetch window of an ``async for`` loop: ready and requested claims, limited by its recent pace."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiozkqueue.layout import Condition
    from aiozkqueue.queue.claim.runtime import ClaimRuntime
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.state.claim import Claim

    from .dispatcher import ClaimDispatcher
    from .waiters import Waiter

#: The window is at most the number of messages that the loop finished within this many seconds.
PACE = 0.1


class Prefetcher:
    """The claims of one loop that are ready or requested. It holds no reference to the loop.

    Half of the window is requested at a time, and again before the first half has arrived, so one half can be on its
    way while the loop uses up the other. A prefetcher that is not ``blocking`` wants only messages available now, with
    one request at a time.
    """

    def __init__(
        self, handle: QueueHandle[ClaimRuntime], most: int, *, blocking: bool, condition: Condition | None
    ) -> None:
        self._runtime = handle.runtime
        self._state = handle.state
        self._most = most
        self._blocking = blocking
        self._condition = condition
        self._waiters: list[Waiter] = []
        self._asked = 0
        self._finished: deque[float] = deque()
        self.ready: deque[Claim] = deque()
        """Claimed and not yet delivered."""
        self.changed: asyncio.Event = asyncio.Event()
        """Set when there is an answer to `collect`; the waiting loop clears it, and may set it for its own reasons."""

    @property
    def asking(self) -> bool:
        """Whether any request has not been collected."""
        return bool(self._waiters)

    @property
    def answered(self) -> bool:
        """Whether there is something to `collect`."""
        return any(waiter.over for waiter in self._waiters)

    @property
    def excessive(self) -> bool:
        """Whether a loop that has finished nothing for a while has requested too much: it must then call `ask`."""
        return self._blocking and self._asked > 1

    def finished(self) -> None:
        """Count one message that the loop has finished."""
        self._finished.append(self._runtime.clock.monotonic())

    def ask(self) -> bool:
        """Request claims when half of the window is missing; return whether it did.

        Raises: SessionClosedError.
        """
        window = self._window()
        if self._blocking:
            self._shrink_to(window)
        elif self._waiters:
            return False
        missing = window - len(self.ready) - self._asked
        if missing < window - window // 2:
            return False
        waiter = self._dispatcher.request(missing, None if self._blocking else 0)
        waiter.future.add_done_callback(lambda _: self.changed.set())
        self._waiters.append(waiter)
        self._asked += missing
        return True

    def collect(self) -> bool:
        """Take the answered claims; return whether one of the answers is that the queue is empty.

        Raises: errors that waiting does not resolve.
        """
        nothing, failure = False, None
        for waiter in [waiter for waiter in self._waiters if waiter.over]:
            self._waiters.remove(waiter)
            self._asked -= waiter.limit
            if waiter.future.cancelled():
                continue
            error = waiter.future.exception()
            if error is None:
                claims = waiter.future.result()
                nothing = nothing or not claims
                self.ready.extend(claims)
            failure = failure or error
        if failure is not None:  # every request fails with it; the loop raises it once
            raise failure
        return nothing

    def forget_lost(self) -> None:
        """Drop the claims of an ended ZooKeeper session; they are the oldest."""
        current = self._runtime.zookeeper.generation
        while self.ready and self.ready[0].generation != current:
            self.ready.popleft()

    def abandon(self) -> asyncio.Future[None] | None:
        """Release the ready claims and cancel all requests; the future is done when the locks are gone."""
        for waiter in self._waiters:  # this also retrieves the exception of a failed one
            self._dispatcher.cancel_request(waiter)
        self._waiters, self._asked = [], 0
        if self._runtime.closed:
            return None
        current = self._runtime.zookeeper.generation
        claims = [claim for claim in self.ready if claim.generation == current]
        self.ready.clear()
        return self._dispatcher.releases.release(claims)

    async def await_releases(self) -> None:
        """Wait until the claims in flight for a loop that has ended are free again; see `ClaimDispatcher`."""
        if not self._runtime.closed:
            await self._dispatcher.await_releases()

    def _shrink_to(self, window: int) -> None:
        """Cancel requests that exceed the window and have no answer yet: the loop has become slower."""
        while self._asked > window and not (self._waiters[-1].count or self._waiters[-1].over):
            waiter = self._waiters.pop()
            self._asked -= waiter.limit
            self._dispatcher.cancel_request(waiter)

    def _window(self) -> int:
        horizon = self._runtime.clock.monotonic() - PACE
        while self._finished and self._finished[0] < horizon:
            self._finished.popleft()
        return min(self._most, max(1, len(self._finished)))

    @property
    def _dispatcher(self) -> ClaimDispatcher:
        return self._runtime.dispatcher(self._state, self._condition)
