"""A taker that is cancelled before it has received a message of a bundle does not use up an attempt of the message."""

from __future__ import annotations

import asyncio

import aiozkqueue as zq
from aiozkqueue.testing.simulator import run_virtual, simulated

#: Seconds after which takers are cancelled: the claim is sent, the bundle is read, the attempts are recorded.
MOMENTS = [step / 2000 for step in range(60)]
BODIES = [b"0", b"1", b"2", b"3"]  # the first message is a single item


def test_messages_that_a_cancelled_taker_has_not_received_do_not_become_dead_letters() -> None:
    assert run_virtual(consumed_and_dead_letters, limit=1000) == (BODIES, [])


async def consumed_and_dead_letters() -> tuple[list[bytes], list[bytes]]:
    """Cancel a taker at each moment; return the messages that the next one gets, and the dead letters."""
    async with simulated() as cluster:
        cluster.ensemble.delays.network = lambda: 0.001
        async with cluster.connect(name="taker") as session:
            return await _cancel_at_each_moment(session)


async def _cancel_at_each_moment(session: zq.QueueSession) -> tuple[list[bytes], list[bytes]]:
    for number, moment in enumerate(MOMENTS):
        queue = session.queue(f"jobs{number}")
        await queue.configure(zq.QueueConfig(policy=zq.ConsumeOnce(), bundle=len(BODIES) - 1))
        await queue.put(BODIES[0])
        await queue.put_many(BODIES[1:])
        async with session.transaction(autocommit=False) as tx:
            taking = asyncio.create_task(tx.take_many(queue, len(BODIES)))
            await asyncio.sleep(moment)
            taking.cancel()
            await asyncio.wait({taking})
            await tx.rollback(delay=0)
        if not taking.cancelled():
            break  # the take returned before the cancellation
        async with session.transaction() as tx:
            taken = sorted([message.body for message in await tx.take_many(queue, len(BODIES), timeout=10)])
        dead = [message.body for message in await queue.dead_letters.peek()]
        if (taken, dead) != (BODIES, []):
            return taken, dead
    assert number > len(MOMENTS) / 4
    return BODIES, []
