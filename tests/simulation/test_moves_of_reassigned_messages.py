"""A move includes all messages that its source has at its beginning, even if they are reassigned meanwhile."""

from __future__ import annotations

import asyncio

import aiozkqueue as zq
from aiozkqueue.testing import run_virtual, simulated

STICKY = zq.QueueConfig(
    affinity="producer", reap_after=0.001, reap_every=36_000, policy=zq.AtLeastOnce(backoff=zq.Fixed(0))
)


def test_a_move_takes_a_reassigned_message_that_it_waits_for_and_leaves_later_messages() -> None:
    async def main() -> None:
        async with (
            simulated() as cluster,
            cluster.connect(name="one") as first,
            cluster.connect(name="two") as two,
            cluster.connect(name="three", node="three") as three,
            cluster.connect(name="four") as four,
        ):
            source, target = two.queue("source"), two.queue("target")
            await source.configure(STICKY)
            await first.queue("source").put_many([b"held", b"free"])
            async with first.transaction(autocommit=False) as tx:
                assert await tx.take(first.queue("source"), timeout=1) is not None
                reference = await two.admin.moves.start("source", "target")
                while await target.size() < 1:  # noqa: ASYNC110 - the state is in ZooKeeper
                    await asyncio.sleep(0.01)
                await four.queue("source").put(b"later")
                await tx.rollback(delay=0)
            assert await three.queue("source").admin.reap() == 1, "the runner of the move is idle meanwhile"
            await asyncio.sleep(0.01)
            assert await three.queue("source").admin.reap() == 1, "the later message is also late by now"
            while (status := await two.admin.moves.status(reference)).state == "running":  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.1)
            assert (status.state, status.moved) == ("done", 2)
            assert [message.body for message in await target.peek()] == [b"free", b"held"]
            assert [message.body for message in await source.peek()] == [b"later"]

    run_virtual(main)
