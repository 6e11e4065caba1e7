"""Priorities and delays: messages of several priorities, some of them delayed, that consumers take one by one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiozkqueue as zq
from tests.simulation.history import Status
from tests.simulation.programs import Feature, join

if TYPE_CHECKING:
    from tests.simulation.recorder import Recorder

LEVELS = "levels"
PRIORITIES = (-5, 0, 5)


@dataclass
class Order:
    """The observations about the order."""

    dues: dict[str, float] = field(default_factory=dict[str, float])
    """The time before which a message may not be delivered."""
    drained: list[list[tuple[int, str]]] = field(default_factory=list[list[tuple[int, str]]])
    """The priorities and tokens in the order in which the only consumer of a queue has drained it."""


async def prepare(run: Recorder, session: zq.QueueSession) -> None:
    await run.configure(session, LEVELS, zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0.2))))


async def put(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random, seen = run.random, run.history.part(Order)
    queue = session.queue(LEVELS)
    for _ in range(random.randint(2, 8)):
        await asyncio.sleep(random.random() * random.choice([0, 0.05, 0.5]))
        unit, token = run.unit(client), run.token()
        unit.puts = {token: LEVELS}
        delay = random.choice([0, 0, 0.3, 1.5])
        if delay:
            seen.dues[token] = run.loop.time() + delay
        priority = random.choice(PRIORITIES)
        async with run.outcome_of(unit):
            if random.random() < 0.5:
                await queue.put(token.encode(), delay=delay, priority=priority)
            else:
                async with session.transaction() as tx:
                    tx.put(queue, token.encode(), delay=delay, priority=priority)
            run.decide(unit, Status.COMMITTED)


async def drain(run: Recorder, client: str, session: zq.QueueSession) -> None:  # noqa: ARG001 - as every program
    """Put messages of several priorities together into a separate queue, and take them."""
    for _ in range(run.random.randint(1, 3)):
        with suppress(zq.NotCommittedError, zq.ConnectionLostError):
            await drain_one(run, session)


async def drain_one(run: Recorder, session: zq.QueueSession) -> None:
    random = run.random
    queue, taken = session.queue(f"own-{run.token()}"), list[tuple[int, str]]()
    async with session.transaction() as tx:
        for _ in range(random.randint(1, 6)):
            tx.put(queue, run.token().encode(), priority=random.choice(PRIORITIES))
    while await queue.size():
        async with session.transaction() as tx:
            message = await tx.take(queue, timeout=5)
            if message is not None:
                taken.append((message.priority, message.value.decode()))
    run.history.part(Order).drained.append(taken)


join(Feature("tiers", prepare, [put, put, drain]))
