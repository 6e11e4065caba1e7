"""The queues of every history use bundles, and operators change single messages of the bundles."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import aiozkqueue as zq
from tests.simulation.history import Status
from tests.simulation.programs import QUEUES, Feature, join

if TYPE_CHECKING:
    from tests.simulation.recorder import Recorder


async def prepare(run: Recorder, session: zq.QueueSession) -> None:
    for name in QUEUES:
        await session.queue(name).configure(zq.QueueConfig(bundle=run.random.choice([2, 3, 4])))


async def put(run: Recorder, client: str, session: zq.QueueSession) -> None:
    """Put enough messages at once for a bundle."""
    for _ in range(run.random.randint(1, 4)):
        await asyncio.sleep(run.random.random() * run.random.choice([0, 0.05, 0.5]))
        name = run.random.choice(QUEUES)
        unit = run.unit(client)
        unit.puts = {run.token(): name for _ in range(run.random.randint(2, 9))}
        async with run.outcome_of(unit):
            await session.queue(name).put_many([token.encode() for token in unit.puts])
            run.decide(unit, Status.COMMITTED)


async def take(run: Recorder, client: str, session: zq.QueueSession) -> None:
    """Take several messages at once, and commit or release them in parts."""
    random = run.random
    for _ in range(random.randint(2, 6)):
        unit, name = run.unit(client), random.choice(QUEUES)
        async with run.outcome_of(unit), session.transaction() as tx:
            try:
                messages = await tx.take_many(session.queue(name), random.choice([1, 2, 5]), timeout=random.random())
                for message in messages:
                    run.show(unit, client, session, message)
                await asyncio.sleep(random.random() * random.choice([0, 0.05, 0.5]))
            finally:
                run.release_unseen(unit)
            if random.random() < 0.3:
                await tx.rollback(delay=random.choice([0, 0, 0.2]))
                run.decide(unit, Status.NOT_COMMITTED)
            else:
                await tx.commit()
                run.decide(unit, Status.COMMITTED)


async def read_and_configure(run: Recorder, client: str, session: zq.QueueSession) -> None:
    """Read figures and messages, and turn bundles off and on."""
    del client
    random = run.random
    for _ in range(random.randint(1, 4)):
        await asyncio.sleep(random.random() * random.choice([0.05, 0.5]))
        queue = session.queue(random.choice(QUEUES))
        for content in await queue.peek(3):
            await queue.state(content.id)
        with suppress(zq.NotCommittedError):
            await queue.stats()
        if random.random() < 0.2:
            await queue.admin.unbundle()
            await queue.configure(zq.QueueConfig(bundle=3))


join(Feature("bundles", prepare, [put, put, take, take, read_and_configure], apart=True))
