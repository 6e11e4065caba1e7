"""The last error of a message, if a later attempt ends without an error."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster

if TYPE_CHECKING:
    from aiozkqueue.testing.simulator import Cluster

ERROR = "OSError: no paper"


@pytest.mark.parametrize("bundle", [1, 64], ids=["single item", "bundle"])
@pytest.mark.parametrize("end", ["crash", "return", "rollback"])
def test_a_message_keeps_the_error_of_its_last_failed_attempt(bundle: int, end: str) -> None:
    async def main() -> None:
        cluster: Cluster = make_cluster()
        async with cluster.connect() as operator, cluster.connect(name="consumer") as consumer:
            jobs, mine = operator.queue("jobs"), consumer.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=bundle, policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0))))
            first, *_ = await jobs.put_many([b"%d" % number for number in range(40)])
            with pytest.raises(OSError, match="no paper"):
                async with consumer.transaction() as tx:
                    message = await tx.take(mine, timeout=5)
                    assert message is not None
                    assert message.id == first
                    raise OSError("no paper")
            state = await jobs.state(first)
            assert (state.attempts, state.error) == (1, ERROR)
            if end == "return":
                await asyncio.sleep(5)
            else:
                await fail_again(cluster, consumer, first, crashes=end == "crash")
            if end == "crash":
                await bury(operator, first)
                [letter] = await jobs.dead_letters.peek()
                assert letter.reason is not None
                assert letter.reason.endswith(ERROR)
            elif end == "return":
                state = await jobs.state(first)
                assert (state.attempts, state.error) == (1, ERROR)
            else:
                [letter] = await jobs.dead_letters.peek()
                assert letter.reason is not None
                assert "no paper" not in letter.reason, "the last attempt ended without an error"

    run_virtual(main)


async def fail_again(cluster: Cluster, session: zq.QueueSession, message_id: str, *, crashes: bool) -> None:
    """Take the message again, and end its session or roll back."""
    async with session.transaction(autocommit=False) as tx:
        message = await tx.take(session.queue("jobs"), timeout=5)
        assert message is not None
        assert (message.id, message.attempt) == (message_id, 2)
        if crashes:
            cluster.expire("consumer")
            await asyncio.sleep(1)
        await tx.rollback()


async def bury(session: zq.QueueSession, message_id: str) -> None:
    """Take the remaining messages, until the message has become a dead letter."""
    while (await session.queue("jobs").dead_letters.size()) == 0:
        async with session.transaction() as tx:
            taken = await tx.take_many(session.queue("jobs"), 10, timeout=1)
            assert message_id not in [message.id for message in taken]
