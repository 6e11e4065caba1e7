"""The cost of features for queues that do not use them: a plain queue next to queues that use them all.

The cost should be zero. The reference is the figures of the plain queue of `ours` in the same run.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import aiozkqueue as zq

from .measure import Case
from .ours import drained, put, take

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ALL = zq.QueueConfig(
    policy=zq.ConsumeTimes(3), max_size=10_000, history=zq.History(payload=True), ttl=3600, collapse=True
)


@asynccontextmanager
async def all_in_use(session: zq.QueueSession) -> AsyncIterator[None]:
    """Open queues of the same session that use every feature, with messages in them and waiting consumers."""
    full, grouped, sticky = (session.queue(name) for name in ("full", "grouped", "sticky"))
    await full.configure(ALL)
    await sticky.configure(zq.QueueConfig(affinity="producer"))
    await full.put(b"urgent", priority=-5, tags={"size": 3})
    await full.put(b"later", delay=3600)
    await full.put(b"only one", key="k", unique=True)
    await grouped.put_many([b"1", b"2"], group="g")
    await sticky.put(b"ours")

    async def wait(queue: zq.Queue[bytes], condition: zq.Filter | None) -> None:
        async with queue.consume(settle="explicit", filters=condition) as deliveries:
            async for _ in deliveries:
                pass  # hold the message while waiting for the next one

    waiting = [
        asyncio.create_task(wait(full, zq.Filter("size", "gt", 5))),
        asyncio.create_task(wait(grouped, None)),
        asyncio.create_task(wait(sticky, None)),
    ]
    await asyncio.sleep(0.5)
    try:
        yield
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


CASES = [
    Case("put, direct, beside all features", "features", 40_000, partial(put, direct=True, other_work=all_in_use)),
    Case("take + commit, beside all features", "features", 30_000, partial(drained, drain=take, other_work=all_in_use)),
]
