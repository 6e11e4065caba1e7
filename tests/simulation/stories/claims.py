"""Claims for which several clients compete, and claims that an operator releases by force."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import aiozkqueue as zq
from aiozkqueue.testing.simulator import run_virtual
from tests.simulation.history import History, Opened, Status
from tests.simulation.stories import story
from tests.simulation.stories.acts import end, move, put, take_and_commit
from tests.simulation.workload import LIMIT, Run


@story
def an_operator_releases_claims_during_commits(seed: int | str) -> History:
    """Two sessions take and commit while an operator repeatedly releases their claims by force."""

    async def main() -> History:
        run = Run(seed, size=1)
        run.disturbances.calm = True
        async with run.cluster.connect(name="operator") as operator:
            await run.configure(operator, "a", zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))
            queue = operator.queue("a")
            await put(run, queue, 3)
            takers = [take_and_commit(run, f"p{number}", 20) for number in range(2)]
            await asyncio.gather(_force(run, queue, 6, 20), *takers)
            await end(run)
        return run.history

    return run_virtual(main, limit=LIMIT)


@story
def several_consumers_compete_for_one_message(seed: int | str) -> History:
    """Several consumers that do not respect each other's shares take from a queue with few messages."""

    async def main() -> History:
        run = Run(seed, size=1)
        run.disturbances.calm = True
        async with run.cluster.connect(name="producer") as producer:
            await run.configure(producer, "a", zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))
            queue = producer.queue("a")
            await put(run, queue, 2)
            takers = [take_and_commit(run, f"p{number}", 2, patience=0) for number in range(3)]
            await asyncio.gather(put(run, queue, 4), *takers)
            await end(run)
        return run.history

    return run_virtual(main, limit=LIMIT)


@story
def an_operator_on_a_lagging_server_releases_claims(seed: int | str) -> History:
    """The server of the operator lags behind the one where a message was claimed."""

    async def main() -> History:
        run = Run(seed, size=3)
        run.disturbances.calm = True
        first, second, _ = run.ensemble.servers
        second.lag = run.random.random()
        async with run.cluster.connect(name="operator") as operator, run.cluster.connect(name="holder") as holder:
            await move(run, operator, "operator", second)
            await move(run, holder, "holder", first)
            await run.configure(holder, "a", zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))
            await put(run, holder.queue("a"), 1)
            unit = run.unit("holder")
            async with run.outcome_of(unit), holder.transaction() as tx:
                message = await tx.take(holder.queue("a"), timeout=5)
                assert message is not None
                run.show(unit, "holder", holder, message)
                opened = Opened("a", run.loop.time())
                run.history.opened.append(opened)
                await operator.queue("a").admin.release_claims()
                opened.ended = run.loop.time()
                run.release_unseen(unit)
                await tx.commit()
                run.decide(unit, Status.COMMITTED)
            await end(run)
        return run.history

    return run_virtual(main, limit=LIMIT)


@story
def a_slow_client_locks_an_empty_group_during_a_forced_release(seed: int | str) -> History:
    """A slow client locks an empty group; before it releases the lock, another client gets the group."""

    async def main() -> History:
        run = Run(seed, size=1)
        run.disturbances.calm = True
        run.history.ahead = 0  # each message that is taken here was claimed after the forced release
        near, distance = run.ensemble.delays, 1
        run.ensemble.delays = replace(near, network=lambda: distance * near.network())
        async with run.cluster.connect(name="far") as far:
            run.ensemble.delays = near
            await run.configure(far, "a", zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0)), ordered=True))
            await put(run, far.queue("a"), 1)  # creates the commit slot of this session
            await take_and_commit(run, "before", 1, times=1)
            async with run.cluster.connect(name="operator") as operator, far.transaction(autocommit=False) as looking:
                queue, locks = operator.queue("a"), run.ensemble.tree.nodes["/zms/a/locks"]
                take_task = asyncio.create_task(looking.take(far.queue("a"), timeout=500 * run.disturbances.scale))
                await asyncio.sleep(100 * run.disturbances.scale)
                distance, patience = 100, 400 * run.disturbances.scale
                await put(run, queue, 1)
                await take_and_commit(run, "first", 1, times=1)
                for _ in range(200):
                    await asyncio.sleep(run.disturbances.scale)
                    if locks.children:
                        break
                await put(run, queue, 1)
                await _force(run, queue, 1, 1)
                await asyncio.gather(
                    *(take_and_commit(run, name, 400, patience, times=1) for name in ("second", "third"))
                )
                distance = 1
                await take_task
                await looking.rollback(delay=0)
            await end(run)
        return run.history

    return run_virtual(main, limit=LIMIT)


async def _force(run: Run, queue: zq.Queue[bytes], times: int, slowness: int) -> None:
    """Release all claims by force repeatedly."""
    for _ in range(times):
        await asyncio.sleep(run.random.random() * slowness * run.disturbances.scale)
        opened = Opened("a", run.loop.time())
        run.history.opened.append(opened)
        await queue.admin.release_claims()
        opened.ended = run.loop.time()
