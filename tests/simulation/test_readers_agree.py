"""After any operations, all readers of a queue give the same figures: stats, samples, peek, states and sizes.

The operations use what the model in `test_figures_by_a_model` leaves out: groups, priorities, times to live, shards,
changes of the configuration, moves, clean-up, and queues that are deleted and created again.
"""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue import Status
from aiozkqueue.errors import QueueError
from aiozkqueue.sampling import Sampler
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing import Cluster

pytestmark = pytest.mark.timeout(300)

#: Operations of a run.
STEPS = 25
QUEUES = ("jobs", "more")
#: Readings of a queue until none of them sees a message whose time is just over.
TRIES = 4
#: Seconds until the changes of an operation, and those that follow from them, are made.
QUIET = 1.5


@dataclass
class Run:
    """Random operations of two sessions on two queues."""

    random: Random
    cluster: Cluster
    sessions: dict[str, zq.QueueSession]
    sampler: Sampler
    ids: list[str] = field(default_factory=list)
    open: list[tuple[zq.Transaction, list[zq.Message[bytes]]]] = field(default_factory=list)
    leases: list[tuple[str, str]] = field(default_factory=list)
    compared: int = 0

    def queue(self, name: str | None = None) -> zq.Queue[bytes]:
        """Return a queue of either session."""
        return self.sessions[self.random.choice("ab")].queue(name or self.random.choice(QUEUES))

    async def put(self) -> None:
        """Put one or more messages with random options."""
        options: zq.PutOptions = {}
        if self.random.random() < 0.3:
            options["group"] = f"group {self.random.randrange(3)}"
        elif self.random.random() < 0.4:
            options["delay"] = self.random.choice([5, 20, 3600, 7300])
        elif self.random.random() < 0.3:
            options["priority"] = self.random.choice([-1, 3])
        if self.random.random() < 0.2:
            options["ttl"] = self.random.choice([3, 30, 400])
        if self.random.random() < 0.2:
            options["key"], options["unique"] = f"key {self.random.randrange(3)}", "ignore"
            self.ids.append(await self.queue().put(b"x", **options))
        else:
            self.ids += await self.queue().put_many([b"x"] * self.random.choice([1, 2, 9]), **options)

    async def take(self) -> None:
        """Take messages in a transaction that stays open."""
        session = self.sessions[self.random.choice("ab")]
        tx = await session.transaction(autocommit=False).__aenter__()
        queue, limit = session.queue(self.random.choice(QUEUES)), self.random.choice([1, 2, 8])
        self.open.append((tx, await tx.take_many(queue, limit, timeout=self.random.choice([0, 1]))))

    async def end(self) -> None:
        """Commit or roll back a transaction, which may have lost its claims."""
        if not self.open:
            return
        tx, taken = self.open.pop(self.random.randrange(len(self.open)))
        if self.random.random() < 0.4:
            await tx.rollback(delay=self.random.choice([None, 0, 30]))
            return
        for message in taken:
            match self.random.choice(["end", "reject", "release"]):
                case "reject":
                    tx.reject(message, "by chance")
                case "release":
                    tx.release(message, delay=self.random.choice([0, 7, 100]))
                case _:
                    pass
        tx.put(self.random.choice(QUEUES), b"result")
        await tx.commit(timeout=5)

    async def lease(self) -> None:
        """Lease messages."""
        name = self.random.choice(QUEUES)
        lifetime = self.random.choice([5, 50])
        leases = await self.queue(name).leases.take(self.random.choice([1, 3]), lifetime=lifetime)
        self.leases += [(name, lease.token) for lease in leases]

    async def end_lease(self) -> None:
        """Acknowledge, renew or end a lease, which may already have ended."""
        if not self.leases:
            return
        name, token = self.leases.pop(self.random.randrange(len(self.leases)))
        leases = self.queue(name).leases
        if self.random.random() < 0.3:
            await leases.acknowledge([token])
        else:
            await leases.renew([token], lifetime=self.random.choice([0, 40]))

    async def alter(self) -> None:
        """Cancel or update a message in any state."""
        if self.ids:
            message_id, queue = self.random.choice(self.ids), self.queue()
            cancels = self.random.random() < 0.5
            await (queue.cancel(id=message_id) if cancels else queue.update(b"other", id=message_id))

    async def redrive(self) -> None:
        """Redrive dead letters."""
        await self.queue().dead_letters.redrive(into=self.random.choice([None, *QUEUES]))

    async def move(self) -> None:
        """Move all messages of one queue to the other."""
        source, target = self.random.sample(QUEUES, 2)
        await self.sessions["a"].admin.moves.start(source, target)

    async def expire(self) -> None:
        """End one session at the server."""
        self.cluster.expire(self.random.choice("ab"))

    async def seldom(self) -> None:
        """In three of ten calls, purge a queue, break claims, delete it or dissolve its bundles."""
        if self.random.random() < 0.3:
            queue = self.queue()
            admin = queue.admin
            actions: list[Callable[[], Awaitable[object]]] = [queue.purge, self.clean]
            actions += [admin.release_claims, admin.delete, admin.unbundle]
            await self.random.choice(actions)()

    async def clean(self) -> None:
        """Clean all queues up."""
        await self.sessions["b"].admin.clean()

    async def configure(self) -> None:
        """Change a setting."""
        config = self.random.choice(
            [
                zq.QueueConfig(shards=self.random.choice([1, 2, 4])),
                zq.QueueConfig(bundle=self.random.choice([1, 4])),
                zq.QueueConfig(max_size=self.random.choice([0, 20])),
                zq.QueueConfig(paused=self.random.random() < 0.3),
                zq.QueueConfig(ttl=self.random.choice([60, inf])),
                zq.QueueConfig(expired=self.random.choice(["drop", "dead-letter"])),
            ]
        )
        await self.queue().configure(config)

    async def wait(self) -> None:
        """Let time pass."""
        await asyncio.sleep(self.random.choice([4, 12, 35, 4000]))

    async def compare(self) -> None:
        """Compare what the readers say of each queue."""
        await asyncio.sleep(QUIET)
        names = await self.sessions["a"].queues()
        await self.sampler.sample_all(0)
        assert sorted(self.sampler.latest) == names
        for name in names:
            await self.compare_queue(self.sessions["a"].queue(name))

    async def compare_queue(self, queue: zq.Queue[bytes]) -> None:
        """Compare what the readers say of a queue, unless it changes meanwhile."""
        for _ in range(TRIES):
            stats = await queue.stats()
            await self.sampler.sample_all(0)
            sample = self.sampler.latest[queue.name]
            now = core_of(self.sessions["a"]).server_clock.now() / 1000
            states = Counter([(await queue.state(message.id)).status for message in await queue.peek(1000)])
            sizes = await queue.size(), await queue.claimed(), await queue.dead_letters.size()
            letters, consumers = await queue.dead_letters.peek(1000), await queue.admin.consumers()
            later = await queue.stats()
            if (stats.waiting, stats.in_flight, stats.delayed) == (later.waiting, later.in_flight, later.delayed):
                break
            await asyncio.sleep(2)
        else:
            return
        figures = stats.waiting, stats.in_flight, stats.delayed
        assert (sample.waiting, sample.in_flight, sample.delayed) == figures
        assert (states[Status.WAITING], states[Status.IN_FLIGHT], states[Status.DELAYED]) == figures
        assert (sample.retrying, sample.scheduled) == (stats.retrying, stats.scheduled)
        assert sizes == (stats.size, stats.in_flight, stats.dead_letters)
        assert (len(letters), len(consumers)) == (stats.dead_letters, stats.consumers)
        assert (sample.size, sample.dead, sample.consumers) == (stats.size, stats.dead_letters, stats.consumers)
        if stats.oldest_age is None or sample.oldest is None:
            assert (stats.waiting, stats.oldest_age, sample.oldest) == (0, None, None)
        else:
            assert abs(stats.oldest_age - (now - sample.oldest)) < 1
        assert (stats.incomplete, stats.unreadable, sample.unreadable) == ((), {}, {})
        self.compared += 1


@pytest.mark.parametrize("seed", [*range(5), *[pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 40)]])
def test_all_readers_agree(seed: int) -> None:
    random = Random(f"readers {seed}")

    async def main() -> None:
        cluster = make_cluster(seed=seed)
        async with cluster.connect(name="a") as a, cluster.connect(name="b") as b:
            run = Run(random, cluster, {"a": a, "b": b}, Sampler(a))
            for name in QUEUES:
                policy = random.choice([zq.AtLeastOnce(backoff=zq.Fixed(10)), zq.ConsumeTimes(3, backoff=zq.Fixed(10))])
                await a.queue(name).configure(zq.QueueConfig(bundle=random.choice([1, 4, 64]), policy=policy))
                run.ids += await a.queue(name).put_many([b"x"] * 9)
            often: list[Callable[[], Awaitable[None]]] = [run.put, run.take, run.end]
            changes = [run.lease, run.end_lease, run.alter, run.redrive, run.move, run.expire, run.seldom, run.seldom]
            for _ in range(STEPS):
                with suppress(QueueError):  # a key in use, a full queue, a lost claim, a deleted queue, …
                    await random.choice([*often, *often, *often, *changes, run.configure, run.wait])()
                await run.compare()
            assert run.compared > STEPS
            for tx, _ in run.open:
                with suppress(QueueError):
                    await tx.rollback(delay=0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_virtual(main, limit=10**6)
