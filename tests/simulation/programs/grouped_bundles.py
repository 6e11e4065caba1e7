"""A queue with both groups and bundles."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiozkqueue as zq
from tests.simulation.history import Status
from tests.simulation.programs import Feature, groups, join

if TYPE_CHECKING:
    from tests.simulation.recorder import Recorder

MIXED = "mixed"


async def prepare(run: Recorder, session: zq.QueueSession) -> None:
    policy = zq.AtLeastOnce(backoff=zq.Exponential(0.05, 2, 0.4, 0.1))
    await run.configure(session, MIXED, zq.QueueConfig(policy=policy, shards=2, bundle=3))


async def put(run: Recorder, client: str, session: zq.QueueSession) -> None:
    """Put to a group, or put enough messages without a group for a bundle."""
    if run.random.random() < 0.5:
        await groups.put_to(run, client, session, MIXED)
        return
    for _ in range(run.random.randint(1, 4)):
        unit = run.unit(client)
        unit.puts = {run.token(): MIXED for _ in range(run.random.randint(2, 9))}
        async with run.outcome_of(unit):
            await session.queue(MIXED).put_many([token.encode() for token in unit.puts])
            run.decide(unit, Status.COMMITTED)
        await asyncio.sleep(run.random.random() * run.random.choice([0, 0.05, 0.5]))


async def take(run: Recorder, client: str, session: zq.QueueSession) -> None:
    await groups.take_from(run, client, session, MIXED)


async def consume(run: Recorder, client: str, session: zq.QueueSession) -> None:
    await groups.consume_from(run, client, session, MIXED)


join(Feature("grouped_bundles", prepare, [put, put, take, consume], apart=True))
