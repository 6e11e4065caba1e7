"""A message of a bundle keeps the schedule of its retries when its holder dies."""

from __future__ import annotations

import asyncio

import aiozkqueue as zq
from aiozkqueue.testing import run_virtual, simulated

BODIES = [b"0", b"1"]


def test_a_message_of_a_bundle_gets_the_retries_of_its_schedule_after_its_holder_has_died() -> None:
    """Its first retry is due at once, because the message has waited longer than the first delay of the schedule."""

    async def main() -> tuple[list[tuple[bytes, int]], int]:
        async with simulated() as cluster:
            async with cluster.connect(name="first", session_timeout=6) as session:
                jobs = session.queue("jobs")
                await jobs.configure(zq.QueueConfig(policy=zq.ConsumeTimes(2), bundle=len(BODIES)))
                await jobs.put_many(BODIES)
                await asyncio.sleep(3)

                async def handle(delivery: zq.Delivery[bytes]) -> None:
                    if delivery.body == b"0":
                        if delivery.attempt == 1:
                            raise zq.Retry(schedule=[1, 1, 1])
                        cluster.expire("first")
                        await asyncio.Event().wait()

                async with session.listener(jobs, handle) as listener:
                    await asyncio.sleep(1)
                    listener.abort()
            async with cluster.connect(name="second") as session, session.transaction() as tx:
                jobs = session.queue("jobs")
                taken = [(message.body, message.attempt) for message in await tx.take_many(jobs, 2, timeout=10)]
                return taken, await jobs.dead_letters.size()

    assert run_virtual(main, limit=200) == ([(b"0", 3)], 0)
