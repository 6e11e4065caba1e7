"""The takers that wait for claims on one queue, in order of arrival."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from itertools import takewhile
from operator import itemgetter
from typing import TYPE_CHECKING

from aiozkqueue.errors import SessionExpiredError
from aiozkqueue.runtime.clock import SharedTimer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiozkqueue.errors import QueueError
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.runtime.clock import Clock

#: Length of the line, including answered takers, above which the answered ones are removed.
ANSWERED_KEPT = 64


class Waiter:
    """One taker: wants up to ``limit`` claims, all of the same ZooKeeper session if it already holds some.

    It is answered when it has them all, or when the batches that were in flight at its first claim have been answered:
    those bring the next messages in order, and without this taker nothing would wait for them. Its claims are in the
    order in which the batches were launched.
    """

    __slots__ = (
        "_parts",
        "arrival",
        "awaited",
        "blocking",
        "count",
        "due",
        "future",
        "generation",
        "late",
        "limit",
        "transaction",
    )

    def __init__(  # noqa: PLR0917 - one is made for every take
        self,
        limit: int,
        generation: int | None,
        arrival: int,
        blocking: bool,  # noqa: FBT001 - keywords would cost every take
        due: float,
        future: asyncio.Future[list[Claim]],
        transaction: object,
    ) -> None:
        self.transaction: object = transaction
        """The transaction that takes, which may hold several messages of a group; None: a consumer or listener."""
        self.limit: int = limit
        """The most claims that it takes."""
        self.generation: int | None = generation
        """The ZooKeeper session of the claims that its transaction holds; None: it holds none, so any will do."""
        self.blocking: bool = blocking
        """Whether it waits for new messages. If not, it takes those that are available now, which may be none."""
        self.due: float = due
        """When its timeout ends, on the clock of `Clock.monotonic`."""
        self.arrival: int = arrival
        """Its number among the takers of this session and queue, from 1."""
        self.future: asyncio.Future[list[Claim]] = future
        self.count: int = 0
        """The number of claims assigned so far."""
        self.late: bool = False
        """Whether its search was ended because no server answers."""
        self.awaited: set[int] | None = None
        """The batches that it waits for, once it has a claim."""
        self._parts: list[tuple[int, list[Claim]]] | None = None

    @property
    def missing(self) -> int:
        """The number of claims that it still wants."""
        return self.limit - self.count

    @property
    def claims(self) -> list[Claim]:
        """The claims assigned so far, in order."""
        return [claim for _, part in sorted(self._parts or (), key=itemgetter(0)) for claim in part]

    def assign(self, number: int, claims: list[Claim]) -> None:
        """Store the claims that a batch has brought for it."""
        if self._parts is None:
            self._parts = []
        self._parts.append((number, claims))
        self.count += len(claims)

    def is_of_another(self, generation: int) -> bool:
        """Whether its claims belong to another ZooKeeper session."""
        return self._parts is not None and self._parts[0][1][0].generation != generation

    def answer(self) -> None:
        """Resolve its future with the claims assigned so far."""
        self.future.set_result(self.claims)

    def fail(self, error: QueueError) -> None:
        """Fail it with an error that waiting does not resolve; if it has claims, answer with those instead."""
        if self.count:
            self.answer()
        else:
            self.future.set_exception(error)

    @property
    def over(self) -> bool:
        """Whether it has been answered or cancelled."""
        return self.future.done()


class WaitQueue:
    """The takers of one session on one queue. ``wakeup`` is set whenever the line changes."""

    def __init__(self, queue: str, clock: Clock, wakeup: asyncio.Event) -> None:
        self._queue = queue
        self._clock = clock
        self._wakeup = wakeup
        self._loop = asyncio.get_running_loop()
        self._waiters: deque[Waiter] = deque()
        self._deadlines: SharedTimer[Waiter] = SharedTimer(clock, self.answer, self._newcomers)
        self._largest = 1  # the largest limit since the line was last empty
        self._known = 0  # the last arrival whose deadline is registered
        self.arrivals: int = 0
        """The number of takers so far."""

    def __iter__(self) -> Iterator[Waiter]:
        """Iterate over the takers that still wait."""
        return (waiter for waiter in self._waiters if not waiter.future.done())

    def add(self, limit: int, timeout: float | None, generation: int | None, transaction: object) -> Waiter:
        """Add a taker, which gets an empty answer after ``timeout`` seconds (None: no limit; 0: after one search)."""
        self.arrivals += 1
        due = self._clock.monotonic() + timeout if timeout else math.inf
        waiter = Waiter(limit, generation, self.arrivals, timeout != 0, due, self._loop.create_future(), transaction)
        self._waiters.append(waiter)
        if limit > self._largest:  # noqa: PLR1730 - for each take: a call costs five times as much
            self._largest = limit
        if due < self._deadlines.due:
            self._deadlines.fire_by(due)
        self._wakeup.set()
        return waiter

    def extend(self, waiter: Waiter, more: int, promised: int) -> bool:
        """Raise the limit of a taker that keeps its place, unless some of the ``promised`` claims in flight are for it.

        It would otherwise be answered with those only once it has the others too.
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
        """Whether no taker waits; answered takers at the front are removed."""
        waiters = self._waiters
        while waiters and waiters[0].future.done():
            waiters.popleft()
        if waiters:
            return False
        self._largest = 1
        return True

    def wanted(self, promised: int) -> int:
        """Return how many more claims to make besides those in flight: a taker that has some waits only for these."""
        if len(self._waiters) * self._largest <= promised:  # the usual case when a batch lands and many are in flight
            return 0
        waiting = [waiter for waiter in self._waiters if not waiter.future.done()]
        if self._largest == 1:  # then no taker has some and waits for more
            return len(waiting) - promised
        missing = sum([waiter.missing for waiter in waiting])
        more = [waiter.missing for waiter in waiting if waiter.awaited is None]
        return min(missing - promised, sum(more))

    @property
    def any_nonblocking(self) -> bool:
        """Whether a taker takes only messages that are available now."""
        return any(not waiter.blocking for waiter in self)

    @property
    def any_blocking(self) -> bool:
        """Whether a taker waits for new messages."""
        return any(waiter.blocking for waiter in self)

    def assign(  # noqa: PLR0917 - one caller, for every batch
        self,
        number: int,
        in_flight: set[int],
        claims: list[Claim],
        generation: int,
        last_arrival: int | None,
        note_given: Callable[[list[Claim], object], None] | None,
    ) -> list[Claim]:
        """Assign the claims of a batch to the waiting takers; return those that no taker wants.

        ``in_flight`` are the batches that a taker with too few claims then waits for. Takers that arrived after
        ``last_arrival`` get none (None: no limit). ``note_given`` is called with each part and its transaction.
        """
        start = 0
        while start < len(claims) and self._waiters:
            waiter = self._waiters[0]
            if waiter.count and waiter.is_of_another(generation):
                self.answer(waiter)
            if waiter.future.done():
                self._waiters.popleft()
                continue
            if last_arrival is not None and waiter.arrival > last_arrival:
                break
            if waiter.generation is not None and waiter.generation != generation:
                self._waiters.popleft()
                self._expire(waiter)
                continue
            part = claims[start : start + waiter.limit - waiter.count]
            start += len(part)
            if note_given is not None:
                note_given(part, waiter.transaction)
            if len(part) == waiter.limit:
                self._waiters.popleft()
                waiter.future.set_result(part)
                continue
            if waiter.awaited is None:
                waiter.awaited = set(in_flight)
            waiter.assign(number, part)
            if not waiter.missing or last_arrival is not None:  # later batches may hold newer messages of the same keys
                self._waiters.popleft()
                self.answer(waiter)
        return claims[start:]

    def settle_partial(self, in_flight: set[int]) -> None:
        """Have takers with some of their messages wait for the batches in flight; answer them if there are none."""
        for waiter in self:
            if waiter.count and waiter.awaited is None:
                if in_flight:
                    waiter.awaited = set(in_flight)
                else:
                    waiter.answer()

    @property
    def missing(self) -> int:
        """The number of claims that all takers still want."""
        waiting = [waiter for waiter in self._waiters if not waiter.future.done()]
        return len(waiting) if self._largest == 1 else sum([waiter.missing for waiter in waiting])

    def batch_landed(self, number: int) -> None:
        """Answer the taker that waited only for this batch. Only the first in line can have some of its claims."""
        for waiter in self._waiters:
            if not waiter.future.done():
                if waiter.awaited is not None:
                    waiter.awaited.discard(number)
                    if not waiter.awaited:
                        self.answer(waiter)
                return

    def answer(self, waiter: Waiter) -> None:
        """Answer a taker with the claims that it has, which may be none."""
        if not waiter.future.done():  # a repeated answer must not keep the dispatcher awake
            waiter.answer()
            self._wakeup.set()

    def answer_nonblocking(self, last_arrival: int) -> None:
        """Answer the takers that do not wait, if they arrived before a search that found nothing."""
        for waiter in self._waiters:
            if not waiter.blocking and waiter.arrival <= last_arrival:
                self.answer(waiter)
        if len(self._waiters) > ANSWERED_KEPT:  # answered takers pile up behind one that waits for long
            self._waiters = deque(self)

    def expire(self, generation: int | None) -> None:
        """Fail the takers that hold claims of another ZooKeeper session than this one; None: of any."""
        for waiter in self:
            if waiter.generation is not None and waiter.generation != generation:
                self._expire(waiter)

    def fail(self, error: QueueError) -> None:
        """Fail all takers."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.future.done():
                waiter.fail(error)

    def close(self, error: QueueError) -> None:
        """Fail all takers and stop the timers."""
        self._deadlines.close()
        self.fail(error)

    def _newcomers(self) -> list[Waiter]:
        """Return the waiting takers with a deadline that arrived since the last call."""
        known, self._known = self._known, self.arrivals
        latest = takewhile(lambda waiter: waiter.arrival > known, reversed(self._waiters))
        return [waiter for waiter in latest if waiter.due < math.inf and not waiter.over][::-1]

    def _expire(self, waiter: Waiter) -> None:
        waiter.fail(
            SessionExpiredError(
                f"queue {self._queue!r}: the ZooKeeper session of this transaction ended; "
                "its messages go to other consumers; begin a new transaction"
            )
        )
