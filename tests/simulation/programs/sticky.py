"""A sticky queue: each node puts and takes its own messages, and all nodes reassign late messages of other nodes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiozkqueue as zq
from tests.simulation.history import Status
from tests.simulation.programs import Feature, join

if TYPE_CHECKING:
    from tests.simulation.recorder import Recorder

STICKY = "sticky"
REAP_AFTER = 0.5


@dataclass
class Bound:
    """The messages that belong to one node, and the time from which they may be reassigned."""

    puts: dict[str, tuple[str, float]] = field(default_factory=dict[str, tuple[str, float]])
    """By token, the process that put it, and the earliest time at which it is late."""


async def prepare(run: Recorder, session: zq.QueueSession) -> None:
    policy = zq.AtLeastOnce(backoff=zq.Fixed(run.random.choice([0, 0.1])))
    config = zq.QueueConfig(policy=policy, affinity="producer", reap_after=REAP_AFTER, reap_every=3600)
    await run.configure(session, STICKY, config)


async def put(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random, bound = run.random, run.history.part(Bound)
    for _ in range(random.randint(2, 6)):
        await asyncio.sleep(random.random() * random.choice([0, 0.05, 0.5]))
        unit, token = run.unit(client), run.token()
        unit.puts = {token: STICKY}
        bound.puts[token] = client, run.loop.time() + REAP_AFTER
        async with run.outcome_of(unit):
            if random.random() < 0.5:
                await session.queue(STICKY).put(token.encode())
            else:
                async with session.transaction() as tx:
                    tx.put(STICKY, token.encode())
            run.decide(unit, Status.COMMITTED)


async def take(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random = run.random
    for _ in range(random.randint(2, 6)):
        unit = run.unit(client)
        async with run.outcome_of(unit), session.transaction() as tx:
            for message in await tx.take_many(session.queue(STICKY), random.choice([1, 3]), timeout=random.random()):
                run.show(unit, client, session, message)
            await asyncio.sleep(random.random() * random.choice([0, 0.05, 0.5]))
            run.release_unseen(unit)
            if random.random() < 0.2:
                await tx.rollback()
                run.decide(unit, Status.NOT_COMMITTED)
            else:
                await tx.commit()
                run.decide(unit, Status.COMMITTED)


async def reap(run: Recorder, client: str, session: zq.QueueSession) -> None:  # noqa: ARG001 - as every program
    for _ in range(run.random.randint(2, 8)):
        await asyncio.sleep(run.random.random() * 0.5)
        await session.queue(STICKY).admin.reap()


async def open_to_all(run: Recorder, session: zq.QueueSession) -> None:  # noqa: ARG001 - as every preparation
    """Let every node take the remaining messages, because some of their nodes have been killed."""
    await session.queue(STICKY).configure(zq.QueueConfig(affinity="any"))


join(Feature("sticky", prepare, [put, put, take, reap], relax=open_to_all))
