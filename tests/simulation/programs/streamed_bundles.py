"""Streams of a queue with bundles: concurrent drivers, and consumers that take parts of the same bundles."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import aiozkqueue as zq
from tests.simulation.history import Status
from tests.simulation.programs import Feature, join
from tests.simulation.programs.streamed import STREAMED
from tests.simulation.programs.streams import drive, finish, operate, relax

if TYPE_CHECKING:
    from tests.simulation.recorder import Recorder


async def prepare(run: Recorder, session: zq.QueueSession) -> None:
    config = zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0.2)), bundle=run.random.choice([2, 3, 4]))
    if run.random.random() < 0.5:  # each message ends separately
        config = replace(config, history=zq.History())
    await run.configure(session, STREAMED, config)


async def produce(run: Recorder, client: str, session: zq.QueueSession) -> None:
    """Put enough messages at once for a bundle."""
    for _ in range(run.random.randint(2, 8)):
        await asyncio.sleep(run.random.random() * 0.3)
        unit = run.unit(client)
        unit.puts = {run.token(): STREAMED for _ in range(run.random.randint(1, 9))}
        async with run.outcome_of(unit):
            await session.queue(STREAMED).put_many([token.encode() for token in unit.puts])
            run.decide(unit, Status.COMMITTED)


async def take(run: Recorder, client: str, session: zq.QueueSession) -> None:
    """Take some messages of a bundle, and commit or release them."""
    random = run.random
    for _ in range(random.randint(1, 4)):
        await asyncio.sleep(random.random() * random.choice([0.05, 0.5]))
        unit = run.unit(client)
        async with run.outcome_of(unit), session.transaction() as tx:
            try:
                for message in await tx.take_many(session.queue(STREAMED), 2, timeout=random.random()):
                    run.show(unit, client, session, message)
                await asyncio.sleep(random.random() * random.choice([0, 0.05, 0.5]))
            finally:
                run.release_unseen(unit)
            if random.random() < 0.3:
                await tx.rollback(delay=random.choice([0, 0.2]))
                run.decide(unit, Status.NOT_COMMITTED)
            else:
                await tx.commit()
                run.decide(unit, Status.COMMITTED)


join(Feature("streamed_bundles", prepare, [produce, produce, drive, drive, take, operate], finish, relax, apart=True))
