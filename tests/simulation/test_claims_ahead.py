"""Claims ahead of the takers: a session that takes messages fast claims many bundles in one request."""

from __future__ import annotations

import aiozkqueue as zq
from aiozkqueue.testing import run_virtual, simulated

MESSAGES = 8_000
TOGETHER = 100


def test_a_session_claims_many_bundles_ahead_in_one_request() -> None:
    async def messages_of_a_claim() -> float:
        async with simulated() as cluster:
            cluster.ensemble.delays.network = lambda: 0.0005
            async with cluster.connect() as session:
                jobs = session.queue("jobs")
                await jobs.configure(zq.QueueConfig(bundle=64))
                await jobs.put_many([b"%d" % number for number in range(MESSAGES)])
                counts = jobs._core.dispatcher(jobs._state).counts
                taken: list[bytes] = []
                for number in range(MESSAGES // TOGETHER):
                    if number == MESSAGES // TOGETHER // 4:
                        before, claimed = counts.batches, counts.claimed
                    async with session.transaction() as tx:
                        taken += [message.body for message in await tx.take_many(jobs, TOGETHER, timeout=5)]
                assert taken == [b"%d" % number for number in range(MESSAGES)]
                return (counts.claimed - claimed) / (counts.batches - before)

    # With claims of three bundles at a time, it held 179 messages.
    assert run_virtual(messages_of_a_claim, limit=100) > 3 * TOGETHER
