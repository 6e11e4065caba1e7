"""Moves of a queue during puts and takes. Several processes begin them, and may be killed before the moves end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiozkqueue as zq
from tests.simulation.history import Status
from tests.simulation.programs import Feature, join

if TYPE_CHECKING:
    from tests.simulation.recorder import Recorder

SOURCE, TARGET = "from", "to"


@dataclass
class Moved:
    """Moves that were reported as finished."""

    spans: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """The time of the request for each move, and the time when it was known to be finished."""


async def prepare(run: Recorder, session: zq.QueueSession) -> None:
    for name in (SOURCE, TARGET):
        policy = zq.AtLeastOnce(backoff=zq.Fixed(run.random.choice([0, 0.1])))
        await run.configure(session, name, zq.QueueConfig(policy=policy))
        run.spared.add(name)


async def put(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random = run.random
    for _ in range(random.randint(2, 8)):
        await asyncio.sleep(random.random() * random.choice([0, 0.05, 0.5]))
        unit, token = run.unit(client), run.token()
        unit.puts = {token: SOURCE}
        async with run.outcome_of(unit):
            await session.queue(SOURCE).put(token.encode(), delay=random.choice([None, None, 0.2]))
            run.decide(unit, Status.COMMITTED)


async def move(run: Recorder, client: str, session: zq.QueueSession) -> None:  # noqa: ARG001 - as every program
    random, moved = run.random, run.history.part(Moved)
    for _ in range(random.randint(1, 3)):
        await asyncio.sleep(random.random())
        began = run.loop.time()
        reference = await session.admin.moves.start(SOURCE, TARGET)
        if random.random() < 0.2:
            await session.admin.moves.resume()
        for _ in range(40):
            await asyncio.sleep(0.1)
            if (await session.admin.moves.status(reference)).state == "done":
                moved.spans.append((began, run.loop.time()))
                break


join(Feature("moves", prepare, [put, put, move, move]))
