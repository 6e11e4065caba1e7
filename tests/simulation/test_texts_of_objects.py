"""The texts of sessions, loops and their like in a debugger and in logs: they name what they belong to."""

from __future__ import annotations

import asyncio

from aiozkqueue.testing.simulator import run_virtual, simulated


def test_objects_name_their_queue_and_a_session_its_state() -> None:
    async def main() -> None:
        async with simulated() as cluster:
            async with cluster.connect(name="a") as session:
                queue = session.queue("orders")
                assert repr(queue) == "<Queue 'orders'>"
                assert repr(queue.dead_letters) == "<DeadLetters of queue 'orders'>"
                async with queue.consume() as deliveries:
                    assert repr(deliveries) == "<Consumer of queue 'orders'>"
                assert repr(session) == "<QueueSession below '/zms', connected>"
                for server in cluster.ensemble.servers:
                    cluster.ensemble.stop(server)
                await asyncio.sleep(1)
                assert repr(session) == "<QueueSession below '/zms', not connected>"
            assert repr(session) == "<QueueSession below '/zms', closed>"

    run_virtual(main)
