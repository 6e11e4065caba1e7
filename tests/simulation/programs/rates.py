"""Listeners of several sessions that share a rate. Some also have their own rate."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import aiozkqueue as zq
from aiozkqueue.runtime.clock import Clock
from aiozkqueue.runtime.reply_limit import LONGEST_REPLY, ReplyLimit
from tests.simulation.history import Status
from tests.simulation.programs import Feature, join
from tests.simulation.recorder import STATUS, HandlerError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import anyio.abc

    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.rates.timeline import Block
    from aiozkqueue.zookeeper import Check
    from tests.simulation.history import Unit
    from tests.simulation.recorder import Recorder

RATED = "rated"
#: Seconds between two readings of the clock by a process.
LOOK = 0.05


@dataclass
class Pace:
    """The times when calls of handlers began."""

    rate: float = 0.0
    calls: list[float] = field(default_factory=list[float])
    own: list[tuple[float, list[float]]] = field(default_factory=list[tuple[float, list[float]]])
    """The rates of the listeners with a separate rate, each with its calls."""
    reply: float = 0.0
    """The longest time that the lease of used slots took."""
    limit: float = LONGEST_REPLY
    """The longest time that recording an attempt might take."""
    record: float = 0.0
    """The longest time from a slot to its call: that of recording an attempt, if the policy counts them."""


async def prepare(run: Recorder, session: zq.QueueSession) -> None:
    backoff = zq.Fixed(run.random.choice([0, 0.1]))
    policy = run.random.choice([zq.AtLeastOnce(backoff=backoff), zq.ConsumeTimes(4, backoff=backoff)])
    await run.configure(session, RATED, zq.QueueConfig(policy=policy))
    run.history.part(Pace).rate = run.random.choice([2, 10, 40])
    await put(run, "first", session)


async def put(run: Recorder, client: str, session: zq.QueueSession) -> None:
    for _ in range(run.random.randint(1, 3)):
        await asyncio.sleep(run.random.random() * run.random.choice([0, 0.05, 0.5]))
        unit = run.unit(client)
        unit.puts = {run.token(): RATED for _ in range(run.random.choice([1, 10, 30]))}
        async with run.outcome_of(unit):
            await session.queue(RATED).put_many([token.encode() for token in unit.puts])
            run.decide(unit, Status.COMMITTED)


async def listen(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random, pace = run.random, run.history.part(Pace)
    own = random.choice([None, None, pace.rate / 2])
    begun: list[float] = []
    if own is not None:
        pace.own.append((own, begun))
    units: list[tuple[Unit, zq.Delivery[bytes]]] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        now = run.loop.time()
        if not clock.stalled(now):
            pace.calls.append(now)
            begun.append(now)
            pace.record = max(pace.record, now - started[delivery.id])
        unit = run.unit(client)
        units.append((unit, delivery))
        run.show(unit, client, session, delivery)
        try:
            await asyncio.sleep(random.random() * random.choice([0, 0.01, 0.2]))
            if random.random() < 0.1:
                raise HandlerError
        finally:
            run.release_unseen(unit)

    concurrency = random.choice([1, 4, 16])
    listener = session.listener(
        session.queue(RATED), handler, concurrency=concurrency, rate=pace.rate, per_process_rate=own
    )
    started = _measure(run, listener)
    run.loop.call_later(2 + random.random() * 6, random.choice([listener.stop, listener.abort]))
    async with _Clock(run) as clock:
        await run.perhaps_cancelled(listener.run())
    run.history.interrupted += concurrency  # up to this many deliveries may have been about to begin
    for unit, delivery in units:
        run.release_unseen(unit)
        if delivery.outcome is zq.Outcome.UNKNOWN:
            await delivery._settling.work.decision(None)  # type: ignore[attr-defined]
        run.decide(unit, STATUS[delivery.outcome])


def _measure(run: Recorder, listener: zq.Listener[bytes]) -> dict[str, float]:
    """Record how long leases of slots take; return the time when each message was passed to be handled."""
    assert listener._pace is not None
    timeline, start, pace, started = listener._pace._timeline, listener._start, run.history.part(Pace), {}
    assert timeline is not None
    lease = timeline._try_to_lease

    async def measured(count: int, guard: Check) -> Block | None:
        began, limit = run.loop.time(), timeline._reply_limit.seconds
        block = await lease(count, guard)
        if block is not None:
            pace.reply = max(pace.reply, min(limit, run.loop.time() - began))
        return block

    def noted(claims: Sequence[Claim], handlers: anyio.abc.TaskGroup) -> None:
        for claim in claims:
            started[claim.id] = run.loop.time()
        start(claims, handlers)

    if listener._reply_limit is not None:
        listener._reply_limit = _Measured(run)
    timeline._try_to_lease, listener._start = measured, noted  # type: ignore[method-assign]
    return started


class _Measured(ReplyLimit):
    """Records the time limit of each attempt record."""

    def __init__(self, run: Recorder) -> None:
        super().__init__(Clock())
        self._pace = run.history.part(Pace)

    def now(self) -> float:
        self._pace.limit = max(self._pace.limit, self.seconds)
        return super().now()


class _Clock:
    """Notices pauses of its process, because a call that began before a pause continues after it."""

    def __init__(self, run: Recorder) -> None:
        self._run = run
        self._seen = run.loop.time()
        self._late_until = 0.0
        self._looking: asyncio.Task[None] | None = None

    def stalled(self, now: float) -> bool:
        """Whether the process has just been paused."""
        return now < self._late_until or now > self._seen + 2 * LOOK

    async def __aenter__(self) -> Self:
        self._looking = asyncio.create_task(self._look())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._looking is not None
        self._looking.cancel()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            now = self._run.loop.time()
            if self.stalled(now):
                self._late_until = now + LOOK
            self._seen = now


join(Feature("rates", prepare, [put, listen, listen]))
