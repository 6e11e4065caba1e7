"""A queue that is paused and resumed while messages are taken from it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.queue.claim.bundles import TICK
from aiozkqueue.testing.simulator import run_virtual
from tests.simulation.stories import story
from tests.simulation.stories.acts import end, put, put_together, take_and_commit
from tests.simulation.workload import LIMIT, Run

if TYPE_CHECKING:
    from tests.simulation.history import History


@dataclass
class Pauses:
    """The pauses of a queue, each from the reply to the pause until the request to resume."""

    spans: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    late: float = 0.0
    """The maximum time between the claim and the delivery of a message."""


@story
def a_queue_is_paused_while_messages_are_taken(seed: int | str) -> History:
    """One session pauses and resumes a queue repeatedly, and two take from it."""

    async def main() -> History:
        run = Run(seed, size=1)
        run.disturbances.calm = True
        pauses = run.history.part(Pauses)
        pauses.late = 10 * run.disturbances.scale
        async with run.cluster.connect(name="operator") as operator:
            await run.configure(operator, "a", zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))
            queue = operator.queue("a")

            async def pause() -> None:
                for _ in range(4):
                    await asyncio.sleep(run.random.random() * 30 * run.disturbances.scale)
                    await queue.configure(zq.QueueConfig(paused=True))
                    paused = run.loop.time()
                    await asyncio.sleep(run.random.random() * 60 * run.disturbances.scale)
                    pauses.spans.append((paused, run.loop.time()))
                    await queue.configure(zq.QueueConfig(paused=False))

            takers = [take_and_commit(run, name, 4, patience=60 * run.disturbances.scale) for name in ("t1", "t2")]
            await asyncio.gather(put(run, queue, 16, 15), pause(), *takers)
            await end(run)
        return run.history

    return run_virtual(main, limit=LIMIT)


@story
def a_queue_is_paused_while_a_session_has_messages_of_a_bundle_at_hand(seed: int | str) -> History:
    """One session takes the messages of deep bundles one by one, and another pauses and resumes the queue."""

    async def main() -> History:
        run = Run(seed, size=1)
        run.disturbances.calm = True
        pauses = run.history.part(Pauses)
        pauses.late = 2 * TICK + 10 * run.disturbances.scale
        async with run.cluster.connect(name="operator") as operator:
            policy = zq.AtLeastOnce(backoff=zq.Fixed(0))
            await run.configure(operator, "a", zq.QueueConfig(policy=policy, bundle=16))
            await put_together(run, "operator", operator.queue("a"), 64)

            async def pause() -> None:
                await asyncio.sleep(run.random.random() * 5 * TICK)
                await operator.queue("a").configure(zq.QueueConfig(paused=True))
                paused = run.loop.time()
                await asyncio.sleep(20 * TICK)
                pauses.spans.append((paused, run.loop.time()))
                await operator.queue("a").configure(zq.QueueConfig(paused=False))

            slowness = int(TICK / 2 / run.disturbances.scale) + 1
            await asyncio.gather(pause(), take_and_commit(run, "taker", slowness, patience=40 * TICK, times=40))
            await end(run)
        return run.history

    return run_virtual(main, limit=LIMIT)
