"""Two concurrent moves of a queue whose messages are taken meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.testing.simulator import run_virtual
from tests.simulation.stories import story
from tests.simulation.stories.acts import end, put, take_and_commit
from tests.simulation.workload import LIMIT, Run

if TYPE_CHECKING:
    from tests.simulation.history import History


@story
def two_moves_run_while_messages_are_taken(seed: int | str) -> History:
    """Two moves of one queue run during puts and takes. Each message ends once, in either queue."""

    async def main() -> History:
        run = Run(seed, size=1)
        run.disturbances.calm = True
        async with run.cluster.connect(name="producer") as producer:
            for name in ("a", "b"):
                policy = zq.AtLeastOnce(backoff=zq.Fixed(0))
                await run.configure(producer, name, zq.QueueConfig(policy=policy, history=zq.History()))

            async def move(name: str) -> None:
                async with run.cluster.connect(name=name) as session:
                    await asyncio.sleep(run.random.random() * 8 * run.disturbances.scale)
                    reference = await session.admin.moves.start("a", "b")
                    while (await session.admin.moves.status(reference)).state == "running":  # noqa: ASYNC110 - in ZooKeeper
                        await asyncio.sleep(run.disturbances.scale)

            patience = 20 * run.disturbances.scale
            takers = [take_and_commit(run, f"t{queue}", 20, patience, queue=queue) for queue in ("a", "b")]
            await asyncio.gather(put(run, producer.queue("a"), 10), move("m1"), move("m2"), *takers)
            await end(run)
        return run.history

    return run_virtual(main, limit=LIMIT)
