"""The actions of operators during a history."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import aiozkqueue as zq
from aiozkqueue.errors import ConfigConflictError
from aiozkqueue.session.internals import core_of
from tests.simulation.history import Opened, Purged

if TYPE_CHECKING:
    from tests.simulation.recorder import Recorder


async def operate(run: Recorder, client: str, session: zq.QueueSession) -> None:
    """Perform random actions of an operator."""
    del client
    random = run.random
    for _ in range(random.randint(1, 3)):
        await asyncio.sleep(random.random() * 2)
        queue = session.queue(random.choice([name for name in run.queues if name not in run.spared]))
        what = random.choice(["open", "open", "shards", "redrive", "look", "purge", "policy"])
        if what == "open":
            opened = Opened(queue.name, run.loop.time())
            run.history.opened.append(opened)
            run.history.forced_open[queue.name] += await queue.admin.release_claims()
            opened.ended = run.loop.time()
        elif what == "shards":
            with suppress(ConfigConflictError):  # an ordered queue has one shard
                await queue.configure(zq.QueueConfig(shards=random.randint(1, 3)))
        elif what == "policy":
            await run.configure(session, queue.name, zq.QueueConfig(policy=run.policy()))
        elif what == "purge":
            await _purge(run, queue)
        elif what == "redrive":
            run.history.redriven[queue.name] += 1
            with suppress(zq.QueueFullError):  # a full bounded queue; the dead letters stay
                await queue.dead_letters.redrive()
        else:
            await asyncio.gather(queue.stats(), queue.peek(), queue.dead_letters.peek())


async def _purge(run: Recorder, queue: zq.Queue[bytes]) -> None:
    purged = Purged(queue.name)
    run.history.purged.append(purged)
    zookeeper: Any = core_of(queue).zookeeper  # Any: its methods are replaced
    connection = zookeeper.session.connection
    removed = await queue.purge()
    if (
        zookeeper.session.connection is connection
    ):  # otherwise a reply may have been lost, and the redriven messages are not counted
        purged.removed = removed
