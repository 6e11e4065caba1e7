"""After any operations, a queue reports the same figures and states as a simple model of it."""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue import Status
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing.simulator.cluster import Cluster

#: Operations of a run.
STEPS = 30
TIMES = 3
BACKOFF = 10
#: Seconds after which no session keeps untaken messages of a bundle, and each end of a delay has been noticed.
QUIET = 1.0


@dataclass
class Known:
    """A message, and the state that the queue must report."""

    body: bytes
    status: Status = Status.WAITING
    due: float = 0.0
    attempts: int = 0
    key: str | None = None
    unique: bool = False
    leased: bool = False
    holder: zq.Transaction | None = None

    def release(self, delay: float) -> None:
        """Release the message after a delay."""
        self.holder, self.leased = None, False
        self.status = Status.DELAYED if delay else Status.WAITING
        self.due = asyncio.get_running_loop().time() + delay

    def end(self, status: Status = Status.UNKNOWN) -> None:
        """Remove the message from the queue."""
        self.holder, self.leased, self.status = None, False, status

    @property
    def alive(self) -> bool:
        """Whether the message is in the queue."""
        return self.status in {Status.WAITING, Status.DELAYED, Status.IN_FLIGHT}


@dataclass
class Run:
    """Random operations of two sessions on one queue, each followed by a comparison."""

    random: Random
    cluster: Cluster
    sessions: dict[str, zq.QueueSession]
    crashes_count: bool
    messages: dict[str, Known] = field(default_factory=dict)
    open: list[tuple[str, zq.Transaction, list[zq.Message[bytes]]]] = field(default_factory=list)
    leases: list[zq.Lease[bytes]] = field(default_factory=list)
    bodies: int = 0

    def queue(self) -> zq.Queue[bytes]:
        """Return the queue of either session."""
        return self.sessions[self.random.choice("ab")].queue("jobs")

    def alive(self) -> list[Known]:
        """Update ended delays, and return the messages in the queue."""
        now = asyncio.get_running_loop().time()
        for known in self.messages.values():
            if known.status is Status.DELAYED and known.due <= now:
                known.release(0)
        return [known for known in self.messages.values() if known.alive]

    def body(self) -> bytes:
        """Return a unique body."""
        self.bodies += 1
        return b"%d" % self.bodies

    async def put(self) -> None:
        """Put a message with random options."""
        options: zq.PutOptions = {}
        known = Known(self.body())
        if self.random.random() < 0.3:
            options["delay"] = delay = self.random.choice([5, 20, 3600, 7300])
            known.release(delay)
        if self.random.random() < 0.3:
            options["key"] = known.key = f"key {self.random.randrange(3)}"
            options["unique"] = known.unique = self.random.random() < 0.5
        taken = known.unique and any(other.unique and other.key == known.key for other in self.alive())
        try:
            message_id = await self.queue().put(known.body, **options)
        except zq.DuplicateKeyError:
            assert taken
        else:
            assert not taken
            self.messages[message_id] = known

    async def put_many(self) -> None:
        """Put enough messages for bundles."""
        bodies = [self.body() for _ in range(self.random.choice([3, 4, 9]))]
        ids = await self.queue().put_many(bodies)
        self.messages.update((message_id, Known(body)) for message_id, body in zip(ids, bodies, strict=True))

    async def take(self) -> None:
        """Take messages in a transaction that stays open."""
        name = self.random.choice("ab")
        tx = await self.sessions[name].transaction(autocommit=False).__aenter__()
        queue = self.sessions[name].queue("jobs")
        taken = await tx.take_many(queue, self.random.choice([1, 2, 8]), timeout=self.random.choice([0, 1]))
        self.alive()
        for message in taken:
            known = self.messages[message.id]
            assert (known.status, known.body) == (Status.WAITING, message.body)
            assert message.attempt == known.attempts + 1
            known.status, known.holder = Status.IN_FLIGHT, tx
            known.attempts += self.crashes_count
        self.open.append((name, tx, taken))
        await self.bury()

    async def bury(self) -> None:
        """Record the messages for which a take has found that no attempts are left after crashes."""
        for message_id, known in self.messages.items():
            if self.crashes_count and known.status is Status.WAITING and known.attempts >= TIMES:
                known.status = (await self.queue().state(message_id)).status
                assert known.status in {Status.WAITING, Status.DEAD}

    async def end(self) -> None:
        """Commit or roll back a transaction, which may have lost its claims."""
        if not self.open:
            return
        _, tx, taken = self.open.pop(self.random.randrange(len(self.open)))
        held = {message.id: self.messages[message.id] for message in taken if self.messages[message.id].holder is tx}
        if len(held) < len(taken):
            await tx.rollback(delay=0)
            for known in held.values():
                self.failed(known, 0)
        elif self.random.random() < 0.5:
            delay = self.random.choice([None, 0, 30])
            await tx.rollback(delay=delay)
            for known in held.values():
                self.failed(known, BACKOFF if delay is None else delay)
        else:
            await self.commit(tx, taken, held)

    async def commit(self, tx: zq.Transaction, taken: list[zq.Message[bytes]], held: dict[str, Known]) -> None:
        """Commit the end of some messages, the release of others, and a put."""
        for message in taken:
            known, choice = held[message.id], self.random.choice(["end", "end", "reject", "release"])
            known.attempts += choice != "end" and not self.crashes_count
            if choice == "end":
                known.end()
            elif choice == "reject":
                tx.reject(message, "by chance")
                known.end(Status.DEAD)
            else:
                delay = self.random.choice([0, 7, 100])
                tx.release(message, delay=delay)
                known.release(delay)
        body = self.body()
        message_id = tx.put("jobs", body)
        await tx.commit()
        self.messages[message_id] = Known(body)

    def failed(self, known: Known, delay: float) -> None:
        """Record the end of an attempt."""
        known.attempts += not self.crashes_count
        if self.crashes_count and known.attempts >= TIMES:
            known.end(Status.DEAD)
        else:
            known.release(delay)

    async def lease(self) -> None:
        """Lease messages."""
        lifetime = self.random.choice([5, 50])
        leases = await self.queue().leases.take(self.random.choice([1, 3]), lifetime=lifetime)
        self.alive()
        for lease in leases:
            known = self.messages[lease.id]
            assert (known.status, known.body) == (Status.WAITING, lease.body)
            known.attempts += 1
            known.release(lifetime)
            known.leased = True
        self.leases += leases
        await self.bury()

    async def end_lease(self) -> None:
        """Acknowledge, renew or end a lease, which may already have ended."""
        if not self.leases:
            return
        lease = self.leases.pop(self.random.randrange(len(self.leases)))
        known = self.messages[lease.id]
        if not (known.alive and known.leased and known.status is Status.DELAYED):
            return  # the token would end the claim of a later taker
        choice = self.random.choice(["acknowledge", "renew", "end"])
        if choice == "acknowledge":
            await self.queue().leases.acknowledge([lease.token])
            known.end()
        elif choice == "renew":
            await self.queue().leases.renew([lease.token], lifetime=40)
            known.due = max(known.due, asyncio.get_running_loop().time() + 40)
        else:
            await self.queue().leases.renew([lease.token], lifetime=0)
            known.release(0)

    async def alter(self) -> None:
        """Cancel or update a message in any state."""
        if not self.messages:
            return
        message_id, known = self.random.choice(list(self.messages.items()))
        self.alive()
        cancels, body = self.random.random() < 0.5, self.body()
        queue = self.queue()
        result = await (queue.cancel(id=message_id) if cancels else queue.update(body, id=message_id))
        if not known.alive:
            assert result is zq.Alteration.NOT_FOUND
        elif known.status is Status.IN_FLIGHT or known.leased:
            assert result is zq.Alteration.HELD
        else:
            assert result is zq.Alteration.DONE
            if cancels:
                known.end()
            else:
                known.body = body

    async def redrive(self) -> None:
        """Redrive all dead letters except those whose key is in use."""
        number = await self.queue().dead_letters.redrive()
        for known in self.messages.values():
            in_use = known.unique and any(other.unique and other.key == known.key for other in self.alive())
            if known.status is Status.DEAD and not in_use:
                known.attempts, number = 0, number - 1
                known.release(0)
        assert number == 0

    async def purge(self) -> None:
        """In a fifth of the calls, remove all messages without a holder."""
        if self.random.random() < 0.2:
            free = [known for known in self.alive() if known.status is not Status.IN_FLIGHT]
            assert await self.queue().purge() == len(free)
            for known in free:
                known.end()

    async def expire(self) -> None:
        """End one session at the server."""
        name = self.random.choice("ab")
        self.cluster.expire(name)
        for _, tx, taken in [entry for entry in self.open if entry[0] == name]:
            for known in [self.messages[message.id] for message in taken]:
                if known.holder is tx:
                    known.release(0)

    async def release_claims(self) -> None:
        """In three of ten calls, end all claims and delays of retries."""
        if self.random.random() < 0.3:
            await self.queue().admin.release_claims()
            for known in self.alive():
                if known.status is Status.IN_FLIGHT or (known.status is Status.DELAYED and known.attempts):
                    known.release(0)

    async def wait(self) -> None:
        """Let time pass."""
        await asyncio.sleep(self.random.choice([4, 12, 35, 4000]))

    def is_close(self) -> bool:
        """Return whether a delay ends about now, because the clocks of server and client differ by milliseconds."""
        now = asyncio.get_running_loop().time()
        return any(abs(known.due - now) < QUIET for known in self.messages.values() if known.alive)

    async def compare(self) -> None:
        """Compare all figures, and the states of some messages."""
        await asyncio.sleep(QUIET)
        while self.is_close():  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(2 * QUIET)
        queue, alive = self.queue(), self.alive()
        stats = await queue.stats()
        count = Counter(known.status for known in self.messages.values())
        assert (stats.waiting, stats.in_flight, stats.delayed, stats.dead_letters) == (
            count[Status.WAITING],
            count[Status.IN_FLIGHT],
            count[Status.DELAYED],
            count[Status.DEAD],
        )
        assert (await queue.size(), await queue.claimed()) == (len(alive), count[Status.IN_FLIGHT])
        assert stats.unique_keys == sum(known.unique for known in alive)
        assert {message.id: message.body for message in await queue.peek(1000)} == {
            message_id: known.body for message_id, known in self.messages.items() if known.alive
        }
        assert {letter.id: letter.body for letter in await queue.dead_letters.peek(1000)} == {
            message_id: known.body for message_id, known in self.messages.items() if known.status is Status.DEAD
        }
        for message_id, known in self.random.sample(list(self.messages.items()), min(4, len(self.messages))):
            state = await queue.state(message_id)
            assert state.status is known.status
            if known.status in {Status.WAITING, Status.DELAYED, Status.DEAD}:
                assert state.attempts == known.attempts


@pytest.mark.parametrize("bundle", [1, 4])
@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(12, 25))])
def test_the_figures_are_those_of_a_model(seed: int, bundle: int) -> None:
    random = Random(f"{seed} {bundle}")
    crashes_count = random.random() < 0.5
    backoff = zq.Fixed(BACKOFF)
    policy = zq.ConsumeTimes(TIMES, backoff=backoff) if crashes_count else zq.AtLeastOnce(backoff=backoff)

    async def main() -> None:
        cluster = make_cluster(seed=seed)
        async with cluster.connect(name="a") as a, cluster.connect(name="b") as b:
            run = Run(random, cluster, {"a": a, "b": b}, crashes_count)
            await a.queue("jobs").configure(zq.QueueConfig(bundle=bundle, policy=policy))
            often: list[Callable[[], Awaitable[None]]] = [run.put, run.put_many, run.take, run.end]
            seldom = [
                run.lease,
                run.end_lease,
                run.alter,
                run.redrive,
                run.purge,
                run.expire,
                run.release_claims,
                run.wait,
            ]
            for _ in range(STEPS):
                await random.choice([*often, *often, *seldom])()
                await run.compare()
            for _, tx, _ in run.open:
                await tx.rollback(delay=0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_virtual(main, limit=10**6)
