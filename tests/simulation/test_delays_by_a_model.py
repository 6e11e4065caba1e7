"""Random delays, backoffs and leases with steps of the leader's clock: no message is early, held twice, or lost."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.errors import ConnectionLostError
from aiozkqueue.runtime.clock import TRUSTED
from aiozkqueue.testing.simulator import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster

if TYPE_CHECKING:
    import aiozkqueue as zq
    from aiozkqueue.testing.simulator.cluster import Cluster

pytestmark = pytest.mark.timeout(120)

#: The events outside the queue in each history.
EVENTS = 25
#: Seconds by which the leader's clock is set.
STEPS = [5, -5, 60, -60, 400, -400, 3600, -3600]
#: Seconds after a step for which a session may rely on a measurement from before it.
UNSURE = TRUSTED + 5
#: Seconds by which the times of client and server may differ.
CLOSE = 0.1


@dataclass
class Run:
    """A queue, and the true state of its messages in the leader's time."""

    cluster: Cluster
    random: Random
    due: dict[bytes, float] = field(default_factory=dict)
    """The earliest time when a message is due, if that is certain."""
    held: set[bytes] = field(default_factory=set)
    ended: set[bytes] = field(default_factory=set)
    set_at: float = -UNSURE

    def now(self) -> float:
        """Return the leader's time."""
        return self.cluster.ensemble.now() / 1000

    @property
    def sure(self) -> bool:
        """Whether every session knows the leader's time."""
        return asyncio.get_running_loop().time() - self.set_at > UNSURE

    def delay(self, body: bytes, seconds: float) -> None:
        """Note that a message has been delayed."""
        if self.sure:
            self.due[body] = self.now() + seconds

    def taken(self, body: bytes) -> None:
        """Check that a message could be taken."""
        assert body not in self.ended
        assert body not in self.held
        due = self.due.pop(body, None)
        assert due is None or not self.sure or self.now() >= due - CLOSE
        self.held.add(body)

    def set_clock(self) -> None:
        """Set the leader's clock, or elect a leader with another clock. Delays that have ended stay ended."""
        self.due = {body: due for body, due in self.due.items() if due > self.now() + CLOSE}
        self.cluster.ensemble.offset += self.random.choice(STEPS)
        self.set_at = asyncio.get_running_loop().time()
        if not self.cluster.ensemble.alone:
            self.cluster.ensemble.elect()

    async def consume(self, session: zq.QueueSession, random: Random) -> None:
        """Take and settle messages forever."""
        while True:
            await asyncio.sleep(random.choice([0, 0, 1, 80, 400]))
            take = self.lease if random.random() < 0.3 else self.handle
            with suppress(ConnectionLostError):  # raised to a taker that does not wait, during an election
                await take(session.queue("jobs"), session, random)

    async def handle(self, jobs: zq.Queue[bytes], session: zq.QueueSession, random: Random) -> None:
        """Take a message in a transaction, and commit or delay it."""
        tx = await session.transaction(autocommit=False).__aenter__()
        message = await tx.take(jobs, timeout=random.choice([0, 1, 50, 2000]))
        if message is None:
            await tx.rollback()
            return
        self.taken(message.body)
        await asyncio.sleep(random.choice([0, 1, 90]))
        if random.random() < 0.5:
            await tx.commit()
            self.ended.add(message.body)
        else:
            seconds = random.choice([0, 1, 30, 600])
            await tx.rollback(delay=seconds)
            self.delay(message.body, seconds)
        self.held.remove(message.body)

    async def lease(self, jobs: zq.Queue[bytes], _: zq.QueueSession, random: Random) -> None:
        """Lease a message, and acknowledge it or let the lease end."""
        lifetime = random.choice([5, 100, 900])
        for lease in await jobs.leases.take(lifetime=lifetime, timeout=random.choice([0, 50])):
            self.taken(lease.body)
            self.held.remove(lease.body)
            self.delay(lease.body, lifetime)
            if random.random() < 0.3:
                await jobs.leases.acknowledge([lease.token])
                self.ended.add(lease.body)


@pytest.mark.parametrize("seed", [*range(30), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(30, 60))])
def test_nothing_is_early_or_lost_whatever_the_clock_of_the_leader_does(seed: int) -> None:
    async def main() -> None:
        random = Random(seed)
        cluster = make_cluster(seed=seed, servers=random.choice([1, 1, 3]))
        run, number = Run(cluster, random), 0
        async with (
            cluster.connect(name="producer", session_timeout=20) as producer,
            cluster.connect(name="a", session_timeout=20) as a,
            cluster.connect(name="b", session_timeout=20) as b,
        ):
            consumers = [
                asyncio.ensure_future(run.consume(session, Random(f"{seed} {name}")))
                for name, session in (("a", a), ("b", b))
            ]
            for _ in range(EVENTS):
                event = random.random()
                if event < 0.15:
                    run.set_clock()
                elif event < 0.7:
                    body, seconds = b"%d" % number, random.choice([0, 1, 20, 300, 4000])
                    number += 1
                    await producer.queue("jobs").put(body, delay=seconds)
                    if body not in run.ended | run.held:
                        run.delay(body, seconds)
                await asyncio.sleep(random.choice([0, 1, 10, 100, 700]))
            async with asyncio.timeout(50_000):
                while len(run.ended) < number and not any(task.done() for task in consumers):  # noqa: ASYNC110 - in virtual time
                    await asyncio.sleep(100)
            for task in consumers:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    run_virtual(main, limit=200_000)
