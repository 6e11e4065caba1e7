"""Those who wait for claims on one queue, in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from aiozkqueue.errors import SessionExpiredError
from aiozkqueue.queue.deadlines import Deadlines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiozkqueue.errors import QueueError
    from aiozkqueue.queue.claim import Claim
    from aiozkqueue.queue.clock import Clock

#: Takers in line, answered ones among them, from which on the answered are sent away.
ANSWERED_KEPT = 64


class Waiter:
    """One taker: wants up to ``limit`` claims, of one ZooKeeper session if it has some of it already."""

    __slots__ = ("arrival", "future", "generation", "limit", "owner", "patient")

    def __init__(  # noqa: PLR0917 - one is made for every take
        self,
        limit: int,
        generation: int | None,
        arrival: int,
        patient: bool,  # noqa: FBT001
        future: asyncio.Future[list[Claim]],
        owner: object,
    ) -> None:
        self.owner = owner
        """The transaction that takes, which may have several messages of a group; None: a consumer or listener."""
        self.limit = limit
        self.generation = generation
        self.patient = patient
        self.arrival = arrival
        self.future = future

    @property
    def over(self) -> bool:
        """Whether it has been answered, or has gone."""
        return self.future.done()


class Line:
    """The takers of one session on one queue. ``bell`` is rung whenever the line changes."""

    def __init__(self, queue: str, clock: Clock, bell: asyncio.Event) -> None:
        self._queue = queue
        self._bell = bell
        self._loop = asyncio.get_running_loop()
        self._waiters: deque[Waiter] = deque()
        self._deadlines: Deadlines[Waiter] = Deadlines(clock, self.answer)
        self.arrivals = 0
        """How many have come so far."""

    def __iter__(self) -> Iterator[Waiter]:
        """Those who wait still."""
        return (waiter for waiter in self._waiters if not waiter.future.done())

    def join(self, limit: int, generation: int | None, owner: object, *, patient: bool) -> Waiter:
        """Line up."""
        self.arrivals += 1
        waiter = Waiter(limit, generation, self.arrivals, patient, self._loop.create_future(), owner)
        self._waiters.append(waiter)
        self._bell.set()
        return waiter

    def leave_after(self, waiter: Waiter, seconds: float) -> None:
        """Answer a taker with nothing when it has waited for so long."""
        self._deadlines.add(waiter, seconds)

    @property
    def empty(self) -> bool:
        """Whether nobody waits at the front any more; those who were answered there are sent away."""
        waiters = self._waiters
        while waiters and waiters[0].future.done():
            waiters.popleft()
        return not waiters

    @property
    def wanted(self) -> int:
        """How many claims they want together."""
        return sum([waiter.limit for waiter in self._waiters if not waiter.future.done()])

    @property
    def asking(self) -> bool:
        """Whether somebody wants to know what is there now, and does not wait for more."""
        return any(not waiter.patient for waiter in self)

    @property
    def patient(self) -> bool:
        """Whether somebody waits for what may come."""
        return any(waiter.patient for waiter in self)

    def give(
        self,
        claims: list[Claim],
        generation: int,
        since: int | None,
        given: Callable[[list[Claim], object], None] | None,
    ) -> list[Claim]:
        """Give claims to those in line, and return what nobody wants.

        No one gets any who came after ``since``, when they are what was there then; ``given`` is told who got what.
        """
        start = 0
        while start < len(claims) and self._waiters:
            waiter = self._waiters.popleft()
            if waiter.future.done():
                continue
            if since is not None and waiter.arrival > since:
                self._waiters.appendleft(waiter)
                break
            if waiter.generation is not None and waiter.generation != generation:
                self._expire(waiter)
                continue
            part = claims[start : start + waiter.limit]
            start += waiter.limit
            waiter.future.set_result(part)
            if given is not None:
                given(part, waiter.owner)
        return claims[start:]

    def answer(self, waiter: Waiter) -> None:
        """Tell one that there is nothing for it."""
        if not waiter.future.done():  # one that was answered before must not keep the pump from resting
            waiter.future.set_result([])
            self._bell.set()

    def answer_asking(self, since: int) -> None:
        """Tell those who asked before a look that there is nothing, and do not wait."""
        for waiter in self._waiters:
            if not waiter.patient and waiter.arrival <= since:
                self.answer(waiter)
        if len(self._waiters) > ANSWERED_KEPT:  # behind one that waits for long, those who were answered pile up
            self._waiters = deque(self)

    def expire(self, generation: int | None) -> None:
        """Fail those who have claims of another ZooKeeper session than this; None: all who have any."""
        for waiter in self:
            if waiter.generation is not None and waiter.generation != generation:
                self._expire(waiter)

    def fail(self, error: QueueError) -> None:
        """Fail all."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.future.done():
                waiter.future.set_exception(error)

    def close(self, error: QueueError) -> None:
        """Fail all, for good."""
        self._deadlines.close()
        self.fail(error)

    def _expire(self, waiter: Waiter) -> None:
        waiter.future.set_exception(
            SessionExpiredError(
                f"queue {self._queue!r}: the ZooKeeper session of this transaction ended; "
                "its messages go to other consumers, begin a new transaction"
            )
        )
