"""A queue with a history, and concurrent clean-ups that allow no time for late requests.

The key of each message is its token, so that each record shows the token. At the end, there must be a record of each
end: the records are few and recent, so clean-up keeps all of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.errors import QueueError
from aiozkqueue.layout import HistoryRecord
from aiozkqueue.operations.cleaning import clean_queue
from aiozkqueue.zookeeper import ZooKeeperError
from tests.simulation.history import Status
from tests.simulation.programs import Feature, join

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiozkqueue.testing.simulator.tree import Znode
    from tests.simulation.recorder import Recorder

KEPT = "kept"


@dataclass
class Kept:
    """The history of the queue's messages at the end."""

    ends: dict[str, Counter[zq.End]] = field(default_factory=dict)
    """By token, the number of its ends of each kind."""
    there: bool = False


async def prepare(run: Recorder, session: zq.QueueSession) -> None:
    backoff = zq.Fixed(run.random.choice([0, 0, 0.1]))
    policies = [zq.ConsumeTimes(2, backoff=backoff), zq.AtLeastOnce(backoff=backoff)]
    await run.configure(
        session, KEPT, zq.QueueConfig(policy=run.random.choice(policies), history=zq.History(most=1000))
    )


async def produce(run: Recorder, client: str, session: zq.QueueSession) -> None:
    for _ in range(run.random.randint(2, 5)):
        unit = run.unit(client)
        token = run.token()
        unit.puts = {token: KEPT}
        async with run.outcome_of(unit):
            await session.queue(KEPT).put(token.encode(), key=token)
            run.decide(unit, Status.COMMITTED)
        await asyncio.sleep(run.random.random() * 0.3)


async def transact(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random = run.random
    for _ in range(random.randint(2, 5)):
        unit = run.unit(client)
        async with run.outcome_of(unit), session.transaction() as tx:
            for message in await tx.take_many(session.queue(KEPT), 2, timeout=random.choice([0, 0.5])):
                token = run.show(unit, client, session, message)
                what = random.random()
                if what < 0.2:
                    tx.reject(message, "bad")
                    unit.rejects.add(token)
                elif what < 0.4:
                    tx.release(message)
                    unit.keeps.add(token)
            await asyncio.sleep(random.random() * 0.1)
            run.release_unseen(unit)
            if random.random() < 0.3:
                await tx.rollback()
                run.decide(unit, Status.NOT_COMMITTED)
                continue
            await tx.commit()
            run.decide(unit, Status.COMMITTED)


async def clean(run: Recorder, client: str, session: zq.QueueSession) -> None:  # noqa: ARG001 - as every program
    for _ in range(run.random.randint(1, 4)):
        await asyncio.sleep(run.random.random())
        runtime = session._runtime
        try:
            await clean_queue(runtime.handle(KEPT), late=0)
        except (QueueError, ZooKeeperError):
            continue  # the connection was lost, as may happen to the janitor


def finish(run: Recorder, nodes: Mapping[str, Znode]) -> None:
    base = f"/zms/{KEPT}/history/"
    kept = run.history.part(Kept)
    kept.there = True
    for path, node in nodes.items():
        if path.startswith(base) and "/" in path[len(base) :]:
            record = HistoryRecord.decode(path.rpartition("/")[2], node.data)
            kept.ends.setdefault(record.key or record.id, Counter())[record.outcome] += 1


join(Feature("records", prepare, [produce, transact, clean, transact], finish))
