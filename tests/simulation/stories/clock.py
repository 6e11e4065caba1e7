"""A clock that moves while messages wait for a time of this clock."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.testing import TestClock
from aiozkqueue.testing.simulator import run_virtual
from aiozkqueue.testing.simulator.loop import EPOCH
from tests.simulation.history import Status
from tests.simulation.stories import story
from tests.simulation.stories.acts import end
from tests.simulation.workload import LIMIT, Run

if TYPE_CHECKING:
    from tests.simulation.history import History, Unit

BACKOFF = 500.0
PATIENCE = 20_000.0


@dataclass
class Waits:
    """The due times and the deliveries.

    The due times are times of the moved clock, and all other times are those of the loop.
    """

    moves: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """Each move of the clock: its time, and how far the clock was ahead afterwards."""
    dues: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])
    """The due time on the clock, by token and attempt."""
    shown: dict[tuple[str, int], float] = field(default_factory=dict[tuple[str, int], float])
    gave_up: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """For each take without a message, the end of its timeout on the clock, and the time of its return."""
    late: float = 0.0
    """The maximum delay of a delivery after its due time."""

    def ahead(self, moment: float) -> float:
        """Return how far the clock was ahead at this moment."""
        return max((ahead for moved, ahead in self.moves if moved <= moment), default=0.0)

    def reached(self, says: float) -> float:
        """Return the time when the clock reached this reading."""
        ahead = 0.0
        for moved, then in self.moves:
            if says - ahead < moved:
                break
            ahead = then
            if says - ahead <= moved:
                return moved
        return says - ahead


class VirtualTestClock(TestClock):
    """The public test clock, on a loop with virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()

    def time(self) -> float:
        return EPOCH + self.monotonic()

    def monotonic(self) -> float:
        return self._loop.time() + self.moved


class Jumps:
    """A session that puts delayed messages, a session that takes them and fails some, and a clock that jumps."""

    def __init__(self, run: Run, producer: zq.QueueSession, taker: zq.QueueSession, clock: TestClock) -> None:
        self.run = run
        self.random = run.random
        self.waits = run.history.part(Waits)
        self.waits.late = 0.1 + 100 * run.disturbances.scale
        self.producer, self.taker, self.clock = producer, taker, clock
        self.all_put = self.over = False

    async def put(self) -> None:
        random = self.random
        for _ in range(random.randint(2, 6)):
            unit, token = self.run.unit("producer"), self.run.token()
            unit.puts = {token: "a"}
            delay = random.choice([0.0, 30.0, 500.0, 7000.0]) * random.random()
            self.waits.dues[token, 1] = self.clock.monotonic() + delay
            await self.producer.queue("a").put(token.encode(), delay=delay)
            self.run.decide(unit, Status.COMMITTED)
            await asyncio.sleep(random.random() * 5)
        self.all_put = True

    async def move(self) -> None:
        random = self.random
        for _ in range(random.randint(1, 6)):
            await asyncio.sleep(random.random() * 5)
            self.jump(random.random() * random.choice([5.0, 200.0, 5000.0]))
        while not self.all_put or len(self.waits.shown) < len(self.waits.dues):
            await asyncio.sleep(2)
            self.jump(1000)
        await asyncio.sleep(5)
        self.over = True
        self.jump(PATIENCE)

    def jump(self, by: float) -> None:
        self.clock.advance(by)
        self.waits.moves.append((self.run.loop.time(), self.clock.moved))

    async def take(self) -> None:
        while not self.over:
            unit, patience = self.run.unit("taker"), self.clock.monotonic() + PATIENCE
            shown = False
            try:
                async with self.run.outcome_of(unit), self.taker.transaction(autocommit=False) as tx:
                    message = await tx.take(self.taker.queue("a"), timeout=PATIENCE)
                    if message is not None:
                        shown = True
                        await self.show(unit, tx, message)
            finally:
                if not shown:
                    self.waits.gave_up.append((patience, self.run.loop.time()))

    async def show(self, unit: Unit, tx: zq.Transaction, message: zq.Message[bytes]) -> None:
        token = self.run.show(unit, "taker", self.taker, message)
        self.waits.shown[token, message.attempt] = self.run.loop.time()
        if message.attempt == 1 and self.random.random() < 0.4:
            # The delay ends by the leader's time, which is known here up to a round trip.
            self.waits.dues[token, 2] = self.clock.monotonic() + BACKOFF - 2 * self.run.disturbances.scale
            await tx.rollback()
            self.run.decide(unit, Status.NOT_COMMITTED)
        else:
            await tx.commit()
            self.run.decide(unit, Status.COMMITTED)


@story
def a_test_clock_moves_past_delays_and_timeouts(seed: int | str) -> History:
    """Delayed puts, backoffs and a take with a long timeout, on a clock that moves by seconds and by hours."""

    async def main() -> History:
        run = Run(seed, size=1)
        run.disturbances.calm = True
        run.cluster.clock = clock = VirtualTestClock()
        connect = run.cluster.connect
        async with connect(name="producer") as producer, connect(name="taker") as taker:
            await run.configure(producer, "a", zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(BACKOFF))))
            jumps = Jumps(run, producer, taker, clock)
            with suppress(TimeoutError):
                async with asyncio.timeout(LIMIT / 2):
                    await asyncio.gather(jumps.put(), jumps.move(), jumps.take())
            await end(run)
        return run.history

    return run_virtual(main, limit=LIMIT)
