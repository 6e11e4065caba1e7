"""Bundles that end while they are counted, or that are released as a whole or with a delay."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.queue.commit.release_claims import LONGEST_KEPT
from aiozkqueue.testing.simulator import run_virtual
from tests.simulation.history import Status, Unit
from tests.simulation.stories import story
from tests.simulation.stories.acts import end, put_together
from tests.simulation.stories.clock import Waits
from tests.simulation.workload import LIMIT, Run

if TYPE_CHECKING:
    from tests.simulation.history import History

SIZE = 4
#: Longer than a session keeps a message whose single item ZooKeeper refuses.
DELAY = 1.5 * LONGEST_KEPT
PATIENCE = 10.0


@story
def a_queue_is_counted_while_a_bundle_ends(seed: int | str) -> History:
    """One session finishes the last message of a bundle, and another counts the messages at the same time."""

    async def main() -> History:
        run = Run(seed, size=1)
        run.disturbances.calm = True
        async with run.cluster.connect(name="taker") as taker, run.cluster.connect(name="operator") as operator:
            await run.configure(operator, "a", zq.QueueConfig(policy=zq.AtLeastOnce(), bundle=SIZE))
            await put_together(run, "operator", operator.queue("a"), 2 * SIZE)
            queue = taker.queue("a")
            async with taker.transaction(autocommit=False) as first, taker.transaction(autocommit=False) as last:
                ended = _shown(run, taker, await first.take_many(queue, SIZE - 1))
                unit = _shown(run, taker, await last.take_many(queue, 1))  # so that no messages are left to return
                await first.commit()
                run.decide(ended, Status.COMMITTED)
                size, _ = await asyncio.gather(_counted(run, operator), _committed(run, last))
                run.decide(unit, Status.COMMITTED)
            if size not in (SIZE, SIZE + 1):
                run.history.trouble.append(f"a queue of {SIZE + 1} messages, then {SIZE}, is said to have {size}")
            await end(run)
        return run.history

    return run_virtual(main, limit=LIMIT)


@story
def messages_of_a_bundle_are_redelivered_after_their_delay(seed: int | str) -> History:
    """A session takes the first messages of a bundle, and rolls back with a delay."""

    async def main() -> History:
        run = Run(seed, size=1)
        run.disturbances.calm = True
        waits = run.history.part(Waits)
        waits.late = 0.1 + 100 * run.disturbances.scale
        async with run.cluster.connect(name="taker") as session:
            await run.configure(session, "a", zq.QueueConfig(policy=zq.AtLeastOnce(), bundle=SIZE))
            queue = session.queue("a")
            await put_together(run, "taker", queue, 2 * SIZE)
            async with session.transaction(autocommit=False) as tx:
                held = await tx.take_many(queue, run.random.randint(1, SIZE))
                unit = _shown(run, session, held)
                now = run.loop.time()
                for message in held:
                    waits.dues[message.value.decode(), 2] = now + DELAY - 2 * run.disturbances.scale
                await tx.rollback(delay=DELAY)
                run.decide(unit, Status.NOT_COMMITTED)
            for _ in range(2 * SIZE):
                async with session.transaction(autocommit=False) as tx:
                    unit = _shown(run, session, await tx.take_many(queue, 1, timeout=2 * DELAY))
                    waits.shown.update({due: run.loop.time() for due in waits.dues if due[0] in _tokens(unit)})
                    await tx.commit()
                    run.decide(unit, Status.COMMITTED)
            await end(run)
        return run.history

    return run_virtual(main, limit=LIMIT)


@story
def messages_of_a_returned_bundle_keep_their_attempts(seed: int | str) -> History:
    """A session takes a whole bundle, releases it at once, and returns it because no taker comes."""

    async def main() -> History:
        run = Run(seed, size=1)
        run.disturbances.calm = True
        async with run.cluster.connect(name="taker") as taker, run.cluster.connect(name="other") as other:
            await run.configure(other, "a", zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0)), bundle=SIZE))
            await put_together(run, "other", other.queue("a"), SIZE)
            async with taker.transaction(autocommit=False) as tx:
                unit = _shown(run, taker, await tx.take_many(taker.queue("a"), SIZE))
                await tx.rollback()
                run.decide(unit, Status.NOT_COMMITTED)
            async with other.transaction(autocommit=False) as tx:
                again = await tx.take_many(other.queue("a"), SIZE, timeout=PATIENCE)
                unit = _shown(run, other, again)
                await tx.commit()
                run.decide(unit, Status.COMMITTED)
            if any(message.attempt != 2 for message in again) or not again:
                run.history.trouble.append(f"attempts of the second delivery: {[message.attempt for message in again]}")
            await end(run)
        return run.history

    return run_virtual(main, limit=LIMIT)


def _tokens(unit: Unit) -> set[str]:
    return {delivery.token for delivery in unit.takes}


def _shown(run: Run, session: zq.QueueSession, messages: list[zq.Message[bytes]]) -> Unit:
    unit = run.unit("taker")
    for message in messages:
        run.show(unit, "taker", session, message)
    run.release_unseen(unit)
    return unit


async def _counted(run: Run, session: zq.QueueSession) -> int:
    await asyncio.sleep(run.random.random() * 5 * run.disturbances.scale)
    return await session.queue("a").size()


async def _committed(run: Run, tx: zq.Transaction) -> None:
    await asyncio.sleep(run.random.random() * 10 * run.disturbances.scale)
    await tx.commit()
