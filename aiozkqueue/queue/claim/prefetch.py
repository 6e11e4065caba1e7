"""What a loop has claimed ahead, and what it has asked for: together never more than it has shown to need."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiozkqueue.layout import Condition
    from aiozkqueue.queue.session_core import SessionCore
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.state.queue_state import QueueState

    from .dispatcher import ClaimDispatcher
    from .waiters import Waiter

#: Claimed ahead is at most what the loop finished within this many seconds.
PACE = 0.1


class Prefetcher:
    """The claims of one loop, which are ready for it or asked for. It holds no reference to the loop.

    Half of what it may have is asked for at a time, and again before that has come: so it may be on its way while the
    loop uses up the other half. One that is not ``patient`` wants to know what is there now, and asks once at a time.
    """

    def __init__(
        self, engine: SessionCore, store: QueueState, most: int, *, patient: bool, condition: Condition | None
    ) -> None:
        self._engine = engine
        self._store = store
        self._most = most
        self._patient = patient
        self._condition = condition
        self._waiters: list[Waiter] = []
        self._asked = 0
        self._finished: deque[float] = deque()
        self.ready: deque[Claim] = deque()
        """Claimed, and not handed over yet."""
        self.changed: asyncio.Event = asyncio.Event()
        """Set when there is an answer to `collect`; whoever waits clears it, and sets it for reasons of its own."""

    @property
    def asking(self) -> bool:
        """Whether anything that has been asked for has not been collected."""
        return bool(self._waiters)

    @property
    def answered(self) -> bool:
        """Whether there is something to `collect`."""
        return any(waiter.over for waiter in self._waiters)

    @property
    def excessive(self) -> bool:
        """Whether more is asked for than a loop may have that finishes nothing for a while: then it is to `ask`."""
        return self._patient and self._asked > 1

    def finished(self) -> None:
        """Count one message that the loop is done with."""
        self._finished.append(self._engine.clock.monotonic())

    def ask(self) -> bool:
        """Line up for claims, when half of what the loop may have is missing; tell whether it did.

        Raises: SessionClosedError.
        """
        window = self._window()
        if self._patient:
            self._take_back(window)
        elif self._waiters:
            return False
        missing = window - len(self.ready) - self._asked
        if missing < window - window // 2:
            return False
        waiter = self._dispatcher.request(missing, None if self._patient else 0)
        waiter.future.add_done_callback(self._answered)
        self._waiters.append(waiter)
        self._asked += missing
        return True

    def collect(self) -> bool:
        """Take what has been answered; tell whether one of the answers is that there is nothing.

        Raises: what the dispenser cannot cure by waiting.
        """
        nothing, failure = False, None
        for waiter in [one for one in self._waiters if one.over]:
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
        if failure is not None:  # every request is answered with it; the loop is told once
            raise failure
        return nothing

    def forget_lost(self) -> None:
        """Drop what a session that is over had claimed: it is the oldest."""
        current = self._engine.zookeeper.generation
        while self.ready and self.ready[0].generation != current:
            self.ready.popleft()

    def abandon(self) -> asyncio.Future[None] | None:
        """Give back what is ready, and ask for nothing any more; the future is done when the locks are gone."""
        for waiter in self._waiters:  # and if only to look at what it has failed with
            self._dispatcher.give_up(waiter)
        self._waiters.clear()
        if self._engine.closed:
            return None
        current = self._engine.zookeeper.generation
        claims = [claim for claim in self.ready if claim.generation == current]
        self.ready.clear()
        return self._dispatcher.release(claims)

    def _answered(self, _: object) -> None:
        self.changed.set()

    def _take_back(self, window: int) -> None:
        """The loop has become slower: what it has asked for since it was faster is too much, if it is still to come."""
        while self._asked > window and not (self._waiters[-1].count or self._waiters[-1].over):
            waiter = self._waiters.pop()
            self._asked -= waiter.limit
            self._dispatcher.give_up(waiter)

    def _window(self) -> int:
        horizon = self._engine.clock.monotonic() - PACE
        while self._finished and self._finished[0] < horizon:
            self._finished.popleft()
        return min(self._most, max(1, len(self._finished)))

    @property
    def _dispatcher(self) -> ClaimDispatcher:
        return self._engine.dispatcher(self._store, self._condition)
