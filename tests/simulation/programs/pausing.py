"""A queue that is paused and resumed while messages are taken from it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.session.internals import work_of
from tests.simulation.history import Status
from tests.simulation.programs import Feature, join

if TYPE_CHECKING:
    from tests.simulation.recorder import Recorder

PAUSED = "paused"


@dataclass
class Rested:
    """The pauses of the queue, and the times of its claims, in milliseconds of ZooKeeper's time."""

    spans: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Each pause, from the reply to its request until the request to resume."""
    claims: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    ended: float = float("inf")
    """The time when the run requested to resume the queue at its end, whatever its clients still do."""
    taken: bool = False
    """Whether a client pauses it now: another client must not resume it meanwhile."""


async def prepare(run: Recorder, session: zq.QueueSession) -> None:
    await run.configure(session, PAUSED, zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))


async def put(run: Recorder, client: str, session: zq.QueueSession) -> None:
    for _ in range(run.random.randint(1, 6)):
        await asyncio.sleep(run.random.random() * run.random.choice([0, 0.05, 0.5]))
        unit, token = run.unit(client), run.token()
        unit.puts = {token: PAUSED}
        async with run.outcome_of(unit):
            await session.queue(PAUSED).put(token.encode())
            run.decide(unit, Status.COMMITTED)


async def take(run: Recorder, client: str, session: zq.QueueSession) -> None:
    random, rested = run.random, run.history.part(Rested)
    for _ in range(random.randint(3, 10)):
        unit = run.unit(client)
        async with run.outcome_of(unit), session.transaction() as tx:
            messages = await tx.take_many(session.queue(PAUSED), random.choice([1, 3]), timeout=random.random())
            for message, claim in zip(messages, work_of(tx).claims, strict=True):
                token = run.show(unit, client, session, message)
                rested.claims.setdefault(token, []).append(claim.claimed_at or 0)
            await asyncio.sleep(random.random() * random.choice([0, 0.05, 0.5]))
            run.release_unseen(unit)
            await tx.commit()
            run.decide(unit, Status.COMMITTED)


async def pause(run: Recorder, client: str, session: zq.QueueSession) -> None:
    """Pause and resume, unless another client does."""
    random, rested, queue = run.random, run.history.part(Rested), session.queue(PAUSED)
    if rested.taken:
        return
    rested.taken = True
    for _ in range(random.randint(1, 4)):
        await asyncio.sleep(random.random() * random.choice([0.02, 0.2, 1]))
        await queue.configure(zq.QueueConfig(paused=True))
        paused_at = _now(run)
        await put(run, client, session)  # time for clients that may not know of the pause yet
        await asyncio.sleep(random.random())
        rested.spans.append((paused_at, _now(run)))
        await queue.configure(zq.QueueConfig(paused=False))


def _now(run: Recorder) -> int:
    now: int = run.ensemble.now()  # type: ignore[attr-defined]  # this recorder is a `Run`
    return now


async def resume(run: Recorder, session: zq.QueueSession) -> None:
    """Resume the queue, since the client that paused it may have been killed."""
    run.history.part(Rested).ended = _now(run)
    await session.queue(PAUSED).configure(zq.QueueConfig(paused=False))


join(Feature("pausing", prepare, [put, take, take, pause], relax=resume))
