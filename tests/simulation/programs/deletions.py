"""A queue that is deleted whenever it is empty, while messages are put and taken."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.errors import NotFoundError
from tests.simulation.history import Status
from tests.simulation.programs import Feature, join

if TYPE_CHECKING:
    from tests.simulation.recorder import Recorder

DELETED = "deleted"


async def prepare(run: Recorder, session: zq.QueueSession) -> None:
    await run.configure(session, DELETED, zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))


async def put(run: Recorder, client: str, session: zq.QueueSession) -> None:
    for _ in range(run.random.randint(1, 6)):
        await asyncio.sleep(run.random.random() * run.random.choice([0, 0.05, 0.5]))
        unit, token = run.unit(client), run.token()
        unit.puts = {token: DELETED}
        async with run.outcome_of(unit):
            await session.queue(DELETED).put(token.encode())
            run.decide(unit, Status.COMMITTED)


async def take(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random = run.random
    for _ in range(random.randint(2, 8)):
        unit = run.unit(client)
        async with run.outcome_of(unit), session.transaction(autocommit=False) as tx:
            messages = await tx.take_many(session.queue(DELETED), random.choice([1, 3]), timeout=random.random())
            for message in messages:
                run.show(unit, client, session, message)
            await asyncio.sleep(random.random() * random.choice([0, 0.05]))
            run.release_unseen(unit)
            await tx.commit()
            run.decide(unit, Status.COMMITTED)


async def delete(run: Recorder, client: str, session: zq.QueueSession) -> None:  # noqa: ARG001 - as every program
    """Delete the queue repeatedly, unless messages or other sessions prevent it."""
    for _ in range(run.random.randint(2, 8)):
        await asyncio.sleep(run.random.random() * run.random.choice([0.01, 0.2, 1]))
        with suppress(NotFoundError, zq.NotCommittedError, zq.OutcomeUnknownError):
            await session.queue(DELETED).admin.delete()


join(Feature("deletions", prepare, [put, put, take, delete, delete]))
