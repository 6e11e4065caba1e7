"""Producers of a bounded queue that put several messages at once; some of the puts wait for room."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiozkqueue as zq
from tests.simulation.history import Status
from tests.simulation.programs import Feature, join

if TYPE_CHECKING:
    from tests.simulation.recorder import Recorder

NARROW = "narrow"
SIZE = 6


@dataclass
class Sizes:
    """The maximum number of messages after any put."""

    most: int = 0


async def prepare(run: Recorder, session: zq.QueueSession) -> None:
    await run.configure(session, NARROW, zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0)), max_size=SIZE))


async def put(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random, sizes, queue = run.random, run.history.part(Sizes), session.queue(NARROW)

    async def put_one_message() -> None:
        await asyncio.sleep(random.random() * random.choice([0, 0.01, 0.5]))
        unit = run.unit(client)
        unit.puts = {run.token(): NARROW}

        async def put_message() -> None:
            async with run.outcome_of(unit):
                await queue.put(next(iter(unit.puts)).encode(), timeout=random.choice([0, 0.3, 2]))
                run.decide(unit, Status.COMMITTED)

        if await run.perhaps_cancelled(put_message()) and unit.status is Status.PENDING:
            run.decide(unit, Status.UNKNOWN, "cancelled")
        tree = run.ensemble.tree.nodes  # type: ignore[attr-defined]  # this recorder is a `Run`
        sizes.most = max(sizes.most, sum(path.startswith(f"/zms/{NARROW}/items/") for path in tree))

    for _ in range(random.randint(1, 3)):
        async with asyncio.TaskGroup() as group:
            for _ in range(random.choice([1, 4, 8])):
                group.create_task(put_one_message())


async def replace(run: Recorder, client: str, session: zq.QueueSession) -> None:
    """Take one message and put one, which is possible even if the queue is full."""
    for _ in range(run.random.randint(1, 4)):
        unit = run.unit(client)
        async with run.outcome_of(unit), session.transaction() as tx:
            message = await tx.take(session.queue(NARROW), timeout=0.2)
            if message is not None:
                run.show(unit, client, session, message)
                token = run.token()
                unit.puts = {token: NARROW}
                tx.put(NARROW, token.encode())
            run.release_unseen(unit)
            await tx.commit(timeout=60)
            run.decide(unit, Status.COMMITTED)


join(Feature("bounded", prepare, [put, put, replace]))
