"""The first bundle of a queue: sessions that read the new configuration create no znodes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from aiozkqueue.testing import run_virtual, simulated

if TYPE_CHECKING:
    import aiozkqueue as zq

SESSIONS = 16
MESSAGES = 64


def test_idle_consumers_do_not_read_the_counters_of_a_queues_first_bundle() -> None:
    async def main() -> int:
        async with simulated() as cluster, AsyncExitStack() as stack:
            producer = await stack.enter_async_context(cluster.connect())
            await producer.queue("jobs").put(b"alone")
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            handled: list[bytes] = []
            all_handled = asyncio.Event()
            consumers = [await stack.enter_async_context(cluster.connect()) for _ in range(SESSIONS)]

            async def handle(delivery: zq.Delivery[bytes]) -> None:
                handled.append(delivery.body)
                if len(handled) == MESSAGES + 1:
                    all_handled.set()

            listeners = [session.listener(session.queue("jobs"), handle) for session in consumers]
            for listener in listeners:
                tasks.create_task(listener.run())
            await asyncio.sleep(10)
            before = cluster.ensemble.arrivals
            await producer.queue("jobs").put_many([b"%d" % number for number in range(MESSAGES)])
            await all_handled.wait()
            requests = cluster.ensemble.arrivals - before
            for listener in listeners:
                listener.stop()
            return requests

    # Each session sends about 35 requests. It sent 58 when it also looked for the 24 counters.
    assert run_virtual(main, limit=100) < SESSIONS * 42
