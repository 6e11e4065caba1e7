"""Drivers of a stream that are replaced at an inconvenient moment."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.batches.epoch import RefusedError
from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.errors import NotFoundError
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing.simulator import run_virtual
from tests.simulation.stories import story
from tests.simulation.stories.acts import end, put_together
from tests.simulation.workload import LIMIT, Run

if TYPE_CHECKING:
    from tests.simulation.history import History

GROUP = "spark"
MESSAGES = 6


@story
def a_driver_is_replaced_while_it_gives_its_prepared_batch_back(seed: int | str) -> History:
    """A driver returns the batch that it has prepared while its successor requests that batch."""

    async def main() -> History:
        run = Run(seed, size=1)
        run.disturbances.calm = True
        async with run.cluster.connect(name="old") as old, run.cluster.connect(name="new") as new:
            await run.configure(old, "a", zq.QueueConfig(policy=zq.AtLeastOnce(), bundle=1))
            await put_together(run, "old", old.queue("a"), MESSAGES)
            ledger = Ledger(core_of(old).handle("a"), GROUP)
            first = await ledger.next_batch(-1, MESSAGES // 2)
            await ledger.hand_out(first, "stream")
            await ledger.prepare(first, MESSAGES // 2)
            _, lost = await asyncio.gather(_given_back(run, ledger), _requested(run, new, first))
            if lost:
                run.history.trouble.append("a batch that a driver has requested was released by its predecessor")
            with suppress(NotFoundError):
                await new.queue("a").admin.release_ledger(GROUP)
            await end(run)
        return run.history

    return run_virtual(main, limit=LIMIT)


async def _given_back(run: Run, ledger: Ledger) -> None:
    await asyncio.sleep(run.random.random() * 10 * run.disturbances.scale)
    with suppress(zq.ClaimLostError, RefusedError):  # in the second case without a fence
        await ledger.release_unsealed()


async def _requested(run: Run, session: zq.QueueSession, after: int) -> bool:
    """Request the batch after this one, and read it some time later; return whether it has disappeared."""
    await asyncio.sleep(run.random.random() * 10 * run.disturbances.scale)
    ledger = Ledger(core_of(session).handle("a"), GROUP)
    try:
        number = await ledger.next_batch(after, MESSAGES // 2)
        await asyncio.sleep(20 * run.disturbances.scale)
        handed = await ledger.hand_out(number, "stream")
    except (zq.ClaimLostError, RefusedError):
        return True
    zookeeper, paths = core_of(session).zookeeper, core_of(session).queue_state("a").paths
    locks = [paths.lock(entry.id) for page in handed.pages for entry in page.entries]
    return None in await zookeeper.read_many(locks)
