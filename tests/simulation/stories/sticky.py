"""A node that does not take its messages, and other nodes that reassign them to all nodes."""

from __future__ import annotations

import asyncio

import aiozkqueue as zq
from aiozkqueue.testing.simulator import run_virtual
from tests.simulation.history import History, Status
from tests.simulation.rules.sticky import Reaped
from tests.simulation.stories import story
from tests.simulation.stories.acts import end, put, take_and_commit
from tests.simulation.workload import LIMIT, Run

STICKY = zq.QueueConfig(
    policy=zq.AtLeastOnce(backoff=zq.Fixed(0)), affinity="producer", reap_after=0.001, reap_every=3600
)


@story
def several_nodes_reap_while_the_owner_takes(seed: int | str) -> History:
    """One node puts and takes, while two others reassign and take. Each message is reassigned at most once."""

    async def main() -> History:
        run = Run(seed, size=1)
        run.disturbances.calm = True
        run.history.part(Reaped).alone = True
        async with run.cluster.connect(name="producer") as producer:
            await run.configure(producer, "a", STICKY)

            async def reap(name: str) -> None:
                async with run.cluster.connect(name=name, node=name) as session:
                    for _ in range(12):
                        await session.queue("a").admin.reap()
                        await asyncio.sleep(run.random.random() * 4 * run.disturbances.scale)

            takers = [take_and_commit(run, name, 8, patience=0.05) for name in ("t1", "t2")]
            await asyncio.gather(
                put(run, producer.queue("a"), 8), reap("r1"), reap("r2"), *takers, _take_own(run, producer)
            )
            await producer.queue("a").configure(zq.QueueConfig(affinity="any"))
            await end(run)
        return run.history

    return run_virtual(main, limit=LIMIT)


async def _take_own(run: Run, session: zq.QueueSession) -> None:
    """Take the node's own messages, slowly."""
    for _ in range(6):
        unit = run.unit("producer")
        async with run.outcome_of(unit), session.transaction() as tx:
            message = await tx.take(session.queue("a"), timeout=0.05)
            if message is not None:
                run.show(unit, "producer", session, message)
                await asyncio.sleep(run.random.random() * 20 * run.disturbances.scale)
            run.release_unseen(unit)
            await tx.commit()
            run.decide(unit, Status.COMMITTED)
