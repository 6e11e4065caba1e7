"""Clean-ups that run while messages fail."""

from __future__ import annotations

import asyncio

import aiozkqueue as zq
from aiozkqueue.layout import AttemptRecord
from aiozkqueue.operations.cleaning import clean_queue
from aiozkqueue.testing.simulator import run_virtual
from aiozkqueue.zookeeper import Create
from tests.simulation.history import History, Status
from tests.simulation.stories import story
from tests.simulation.stories.acts import end
from tests.simulation.workload import LIMIT, Run


@story
def clean_up_runs_while_messages_fail(seed: int | str) -> History:
    """Messages fail at each delivery, and a record is left over, while a janitor cleans continuously."""

    async def main() -> History:
        run = Run(seed, size=1)
        run.disturbances.calm = True
        random, scale = run.random, run.disturbances.scale
        async with run.cluster.connect(name="worker") as worker, run.cluster.connect(name="janitor") as janitor:
            await run.configure(worker, "a", zq.QueueConfig(policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0))))
            queue = worker.queue("a")
            await janitor._runtime.zookeeper.multi([Create("/zms/a/meta/meta-gone", AttemptRecord(1).encode())])
            await asyncio.sleep(10 * scale)

            async def fail() -> None:
                for _ in range(12):
                    unit = run.unit("worker")
                    unit.puts = {run.token(): "a"}
                    await queue.put(next(iter(unit.puts)).encode())
                    run.decide(unit, Status.COMMITTED)
                    for _ in range(2):
                        unit = run.unit("worker")
                        async with worker.transaction(autocommit=False) as tx:
                            for message in await tx.take_many(queue, 5):
                                run.show(unit, "worker", worker, message)
                            run.release_unseen(unit)
                            await tx.rollback()
                        run.decide(unit, Status.NOT_COMMITTED)
                        await asyncio.sleep(random.random() * 10 * scale)

            async def clean() -> None:
                while not failing.done():
                    await clean_queue(janitor._runtime.handle("a"), late=0)
                    await asyncio.sleep(random.random() * 2 * scale)

            failing = asyncio.create_task(fail())
            await asyncio.gather(failing, clean())
            await end(run)
        return run.history

    return run_virtual(main, limit=LIMIT)
