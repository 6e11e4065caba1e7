"""Those who wait for claims on one queue, in the order in which they came."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING

from aiozkqueue.errors import SessionExpiredError
from aiozkqueue.queue.runtime.shared_timer import SharedTimer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiozkqueue.errors import QueueError
    from aiozkqueue.queue.runtime.clock import Clock
    from aiozkqueue.queue.state.claim import Claim

#: Takers in line, answered ones among them, from which on the answered are sent away.
ANSWERED_KEPT = 64


class Waiter:
    """One taker: wants up to ``limit`` claims, of one ZooKeeper session if it has some of it already.

    It is answered when it has them all, or when the batches have landed that flew when it got its first: they bring
    what is next in order, and find nobody in line for it if it has gone. What it gets is in the order of their launch.
    """

    __slots__ = ("_parts", "arrival", "awaited", "count", "due", "future", "generation", "limit", "owner", "patient")

    def __init__(  # noqa: PLR0917 - one is made for every take
        self,
        limit: int,
        generation: int | None,
        arrival: int,
        patient: bool,  # noqa: FBT001
        due: float,
        future: asyncio.Future[list[Claim]],
        owner: object,
    ) -> None:
        self.owner: object = owner
        """The transaction that takes, which may have several messages of a group; None: a consumer or listener."""
        self.limit: int = limit
        self.generation: int | None = generation
        self.patient: bool = patient
        self.due: float = due
        """When it has waited for long enough, on the clock of `Clock.monotonic`."""
        self.arrival: int = arrival
        self.future: asyncio.Future[list[Claim]] = future
        self.count: int = 0
        """How many claims there are for it so far."""
        self.awaited: set[int] | None = None
        """The batches that it waits for, once it has some."""
        self._parts: list[tuple[int, list[Claim]]] | None = None

    @property
    def missing(self) -> int:
        """How many more it wants."""
        return self.limit - self.count

    @property
    def claims(self) -> list[Claim]:
        """What there is for it so far, in order."""
        return [claim for _, part in sorted(self._parts or (), key=_launch_of) for claim in part]

    def give(self, flight: int, claims: list[Claim]) -> None:
        """Keep what a batch has brought for it."""
        if self._parts is None:
            self._parts = []
        self._parts.append((flight, claims))
        self.count += len(claims)

    def is_of_another(self, generation: int) -> bool:
        """Whether what there is for it is of another ZooKeeper session."""
        return self._parts is not None and self._parts[0][1][0].generation != generation

    def answer(self) -> None:
        """Hand over what there is for it."""
        self.future.set_result(self.claims)

    def fail(self, error: QueueError) -> None:
        """Tell it what waiting cannot cure; what there is for it is handed over first."""
        if self.count:
            self.answer()
        else:
            self.future.set_exception(error)

    @property
    def over(self) -> bool:
        """Whether it has been answered, or has gone."""
        return self.future.done()


class WaitQueue:
    """The takers of one session on one queue. ``wakeup`` is rung whenever the line changes."""

    def __init__(self, queue: str, clock: Clock, wakeup: asyncio.Event) -> None:
        self._queue = queue
        self._clock = clock
        self._wakeup = wakeup
        self._loop = asyncio.get_running_loop()
        self._waiters: deque[Waiter] = deque()
        self._deadlines: SharedTimer[Waiter] = SharedTimer(clock, self.answer, self._newcomers)
        self._largest = 1  # the most that one in line has ever wanted, since nobody was in it
        self._known = 0  # of so many arrivals the deadlines have been told
        self.arrivals: int = 0
        """How many have come so far."""

    def __iter__(self) -> Iterator[Waiter]:
        """Those who wait still."""
        return (waiter for waiter in self._waiters if not waiter.future.done())

    def join(self, limit: int, timeout: float | None, generation: int | None, owner: object) -> Waiter:
        """Line up, to be answered with nothing after ``timeout`` seconds (None: never; 0: after a look)."""
        self.arrivals += 1
        due = self._clock.monotonic() + timeout if timeout else math.inf
        waiter = Waiter(limit, generation, self.arrivals, timeout != 0, due, self._loop.create_future(), owner)
        self._waiters.append(waiter)
        if limit > self._largest:  # noqa: PLR1730 - for each take: a call costs five times as much
            self._largest = limit
        if due < self._deadlines.due:
            self._deadlines.ring_by(due)
        self._wakeup.set()
        return waiter

    def widen(self, waiter: Waiter, more: int, promised: int) -> bool:
        """Let one want more, where it stands; not if it is to get something of the ``promised`` claims that fly.

        It would be answered with those only when it has the others, too.
        """
        if waiter.future.done() or waiter.count:
            return False
        for before in self:
            if promised <= 0 or before is waiter:
                break
            promised -= before.missing
        if promised > 0:
            return False
        waiter.limit += more
        self._largest = max(self._largest, waiter.limit)
        self._wakeup.set()
        return True

    @property
    def empty(self) -> bool:
        """Whether nobody waits at the front any more; those who were answered there are sent away."""
        waiters = self._waiters
        while waiters and waiters[0].future.done():
            waiters.popleft()
        if waiters:
            return False
        self._largest = 1
        return True

    def wanted(self, promised: int) -> int:
        """How many more claims to look for beside those that fly: who has some already waits for these only."""
        if len(self._waiters) * self._largest <= promised:  # as mostly when a batch has landed, and many fly
            return 0
        waiting = [waiter for waiter in self._waiters if not waiter.future.done()]
        if self._largest == 1:  # then nobody has some and waits for more
            return len(waiting) - promised
        missing = sum([waiter.missing for waiter in waiting])
        return min(missing - promised, sum([waiter.limit for waiter in waiting if not waiter.count]))

    @property
    def asking(self) -> bool:
        """Whether somebody wants to know what is there now, and does not wait for more."""
        return any(not waiter.patient for waiter in self)

    @property
    def patient(self) -> bool:
        """Whether somebody waits for what may come."""
        return any(waiter.patient for waiter in self)

    def give(  # noqa: PLR0917 - one caller, for every batch
        self,
        flight: int,
        flying: set[int],
        claims: list[Claim],
        generation: int,
        since: int | None,
        given: Callable[[list[Claim], object], None] | None,
    ) -> list[Claim]:
        """Give what a batch has brought to those in line, and return what nobody wants.

        No one gets any who came after ``since``, when they are what was there then; ``given`` is told who got what.
        """
        start = 0
        while start < len(claims) and self._waiters:
            waiter = self._waiters[0]
            if waiter.count and waiter.is_of_another(generation):
                self.answer(waiter)
            if waiter.future.done():
                self._waiters.popleft()
                continue
            if since is not None and waiter.arrival > since:
                break
            if waiter.generation is not None and waiter.generation != generation:
                self._waiters.popleft()
                self._expire(waiter)
                continue
            part = claims[start : start + waiter.limit - waiter.count]
            start += len(part)
            if given is not None:
                given(part, waiter.owner)
            if len(part) == waiter.limit:
                self._waiters.popleft()
                waiter.future.set_result(part)
                continue
            if not waiter.count:
                waiter.awaited = set(flying)
            waiter.give(flight, part)
            if not waiter.missing or since is not None:  # what flies behind may be newer messages of the same keys
                self._waiters.popleft()
                self.answer(waiter)
        return claims[start:]

    def landed(self, flight: int) -> None:
        """Answer who waited for this batch last. Only the first in line can have some of what it wants."""
        for waiter in self._waiters:
            if not waiter.future.done():
                if waiter.awaited is not None:
                    waiter.awaited.discard(flight)
                    if not waiter.awaited:
                        self.answer(waiter)
                return

    def answer(self, waiter: Waiter) -> None:
        """Hand over what there is for one, which may be nothing."""
        if not waiter.future.done():  # one that was answered before must not keep the pump from resting
            waiter.answer()
            self._wakeup.set()

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
                waiter.fail(error)

    def close(self, error: QueueError) -> None:
        """Fail all, for good."""
        self._deadlines.close()
        self.fail(error)

    def _newcomers(self) -> list[Waiter]:
        """Those with a deadline who have come since this was asked last, and wait still."""
        known, self._known = self._known, self.arrivals
        latest = takewhile(lambda waiter: waiter.arrival > known, reversed(self._waiters))
        return [waiter for waiter in latest if waiter.due < math.inf and not waiter.over][::-1]

    def _expire(self, waiter: Waiter) -> None:
        waiter.fail(
            SessionExpiredError(
                f"queue {self._queue!r}: the ZooKeeper session of this transaction ended; "
                "its messages go to other consumers, begin a new transaction"
            )
        )


def _launch_of(part: tuple[int, list[Claim]]) -> int:
    return part[0]
