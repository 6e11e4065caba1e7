"""Schedulers of a job that occurs every second. Its messages are never taken, so that all of them can be counted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiozkqueue.schedule import Jobs, Scheduler
from tests.simulation.programs import Feature, join

if TYPE_CHECKING:
    import aiozkqueue as zq
    from tests.simulation.recorder import Recorder

TICKS = "ticks"


@dataclass
class Ticks:
    """The contents of the queue of ticks, at several times."""

    seen: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    """By message id, the date of the occurrence."""


async def record_queue(run: Recorder, session: zq.QueueSession) -> None:
    messages = await session.queue(TICKS).peek(10_000)
    run.history.part(Ticks).seen.append({message.id: message.headers["occurrence"] for message in messages})


async def prepare(run: Recorder, session: zq.QueueSession) -> None:  # noqa: ARG001 - as every preparation
    await Jobs(session).add("tick", "* * * * * *", TICKS, b"", missed="all", limit=1000, tolerance=2)


async def schedule(run: Recorder, client: str, session: zq.QueueSession) -> None:  # noqa: ARG001 - as every program
    random = run.random
    for _ in range(random.randint(1, 2)):
        async with Scheduler(session):
            await asyncio.sleep(random.random() * random.choice([1, 4]))
        await record_queue(run, session)


join(Feature("recurring", prepare, [schedule, schedule]))
