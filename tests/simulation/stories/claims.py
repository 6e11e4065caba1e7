"""Claims that are fought for."""

from __future__ import annotations

import asyncio

import aiozkqueue as zq
from aiozkqueue.testing.simulator import run_virtual
from tests.simulation.history import History, Opened, Status
from tests.simulation.stories import story
from tests.simulation.stories.acts import end, move, put, take_and_commit
from tests.simulation.workload import LIMIT, Run


@story
def claims_are_forced_open_while_they_are_committed(seed: int | str) -> History:
    """Several take and commit what an operator opens by force again and again."""

    async def main() -> History:
        run = Run(seed, size=1)
        run.weather.calm = True
        async with run.cluster.connect(name="operator") as operator:
            await run.configure(operator, "a", zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))
            queue = operator.queue("a")

            async def force() -> None:
                for _ in range(6):
                    await asyncio.sleep(run.random.random() * 20 * run.weather.scale)
                    opened = Opened("a", run.loop.time())
                    run.history.opened.append(opened)
                    await queue.release_claims()
                    opened.ended = run.loop.time()

            await put(run, queue, 3)
            await asyncio.gather(force(), *(take_and_commit(run, f"p{number}", 20) for number in range(2)))
            await end(run)
        return run.history

    return run_virtual(main, limit=LIMIT)


@story
def many_want_the_same(seed: int | str) -> History:
    """Several takers, who do not leave each other's share, and a message now and then."""

    async def main() -> History:
        run = Run(seed, size=1)
        run.weather.calm = True
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
def claims_are_forced_open_by_who_sees_them_late(seed: int | str) -> History:
    """The operator's server lags behind the one by which a message was claimed."""

    async def main() -> History:
        run = Run(seed, size=3)
        run.weather.calm = True
        first, second, _ = run.ensemble.servers
        second.lag = run.random.random()
        async with run.cluster.connect(name="operator") as operator, run.cluster.connect(name="holder") as holder:
            await move(run, operator, "operator", second)
            await move(run, holder, "holder", first)
            await run.configure(holder, "a", zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))
            await put(run, holder.queue("a"), 1)
            unit = run.unit("holder")
            async with run.told(unit), holder.begin() as tx:
                message = await tx.take(holder.queue("a"), timeout=5)
                assert message is not None
                run.show(unit, "holder", holder, message)
                opened = Opened("a", run.loop.time())
                run.history.opened.append(opened)
                await operator.queue("a").release_claims()
                opened.ended = run.loop.time()
                run.let_go(unit)
                await tx.commit()
                run.decide(unit, Status.COMMITTED)
            await end(run)
        return run.history

    return run_virtual(main, limit=LIMIT)
