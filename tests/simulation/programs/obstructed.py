"""A queue in which another program temporarily creates znodes below items and attempt records."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiozkqueue as zq
from aiozkqueue.zookeeper import ConnectionLossError, Create, Delete, MultiError, SessionExpiredError
from tests.simulation.history import Status
from tests.simulation.programs import Feature, join
from tests.simulation.recorder import HandlerError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiozkqueue.testing.simulator.tree import Znode
    from tests.simulation.recorder import Recorder

OBSTRUCTED = "obstructed"
BASE = f"/zms/{OBSTRUCTED}"


@dataclass
class Obstacles:
    """The paths of attempt records with a znode below them."""

    metas: set[str] = field(default_factory=set[str])


async def prepare(run: Recorder, session: zq.QueueSession) -> None:
    backoff = zq.Fixed(0)
    policy = run.random.choice([zq.AtLeastOnce(backoff=backoff), zq.ConsumeTimes(3, backoff=backoff)])
    await run.configure(session, OBSTRUCTED, zq.QueueConfig(policy=policy))
    run.spared.add(OBSTRUCTED)


async def put(run: Recorder, client: str, session: zq.QueueSession) -> None:
    for _ in range(run.random.randint(1, 6)):
        await asyncio.sleep(run.random.random() * run.random.choice([0, 0.05, 0.5]))
        unit, token = run.unit(client), run.token()
        unit.puts = {token: OBSTRUCTED}
        async with run.outcome_of(unit):
            await session.queue(OBSTRUCTED).put(token.encode())
            run.decide(unit, Status.COMMITTED)


async def take(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random = run.random
    for _ in range(random.randint(3, 10)):
        unit = run.unit(client)
        async with run.outcome_of(unit), session.transaction() as tx:
            messages = await tx.take_many(session.queue(OBSTRUCTED), random.choice([1, 3]), timeout=random.random())
            for message in messages:
                run.show(unit, client, session, message)
            await asyncio.sleep(random.random() * random.choice([0, 0.05]))
            run.release_unseen(unit)
            if random.random() < 0.5:
                raise HandlerError
            await tx.commit()
            run.decide(unit, Status.COMMITTED)


async def intrude(run: Recorder, client: str, session: zq.QueueSession) -> None:
    """Create and delete znodes below items and attempt records."""
    del client
    random, zookeeper = run.random, session._runtime.zookeeper
    for _ in range(random.randint(5, 20)):
        await asyncio.sleep(random.random() * random.choice([0.01, 0.1]))
        with suppress(MultiError, ConnectionLossError, SessionExpiredError):
            folder = random.choice(["items", "meta", "meta"])
            names = await zookeeper.children(f"{BASE}/{folder}")
            if not names:
                continue
            path = f"{BASE}/{folder}/{random.choice(sorted(names))}"
            if folder == "meta":
                run.history.part(Obstacles).metas.add(path)
            await zookeeper.multi([Create(f"{path}/child")])


async def clear(run: Recorder, session: zq.QueueSession) -> None:
    """Remove the obstacles, as an operator would, and release the delayed messages."""
    del run
    zookeeper: Any = session._runtime.zookeeper
    for folder in ("items", "meta"):
        for name in await zookeeper.children(f"{BASE}/{folder}"):
            with suppress(MultiError):
                await zookeeper.multi([Delete(f"{BASE}/{folder}/{name}/child")])
    await session.queue(OBSTRUCTED).admin.release_claims()


def finish(run: Recorder, nodes: Mapping[str, Znode]) -> None:
    """Ignore the attempt records that could not be deleted with their messages."""
    del nodes
    final, metas = run.history.final, run.history.part(Obstacles).metas
    final.leftovers = [path for path in final.leftovers if path.partition(" ")[0] not in metas]


join(Feature(OBSTRUCTED, prepare, [put, take, take, intrude], relax=clear, finish=finish))
