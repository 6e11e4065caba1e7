"""A take from a queue whose known messages another session has taken needs few requests to notice."""

from __future__ import annotations

import pytest

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing.simulator import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster

MESSAGES = 600
#: The maximum number of requests. A session that tried each listed message would send hundreds.
FEW = 40
#: The maximum number of locks on messages that no longer exist, which are also requests.
FEWEST = 4


async def take(session: zq.QueueSession, limit: int, timeout: float) -> int:
    async with session.transaction() as tx:
        return len(await tx.take_many(session.queue("jobs"), limit, timeout=timeout))


@pytest.mark.parametrize("timeout", [0, 5])
@pytest.mark.parametrize("reported", [False, True])
@pytest.mark.parametrize(("shards", "priorities"), [(1, [0]), (12, [0]), (1, [1, 0])])
def test_a_take_from_a_queue_that_others_have_emptied_needs_few_requests(
    shards: int, priorities: list[int], timeout: float, *, reported: bool
) -> None:
    """The consumer has listed the messages, or a watch has ``reported`` them."""

    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect() as operator, cluster.connect() as consumer, cluster.connect() as other:
            jobs = operator.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=1, shards=shards))
            for session in (consumer, other):  # from now on, the sessions share the messages
                assert await take(session, 1, 1 if reported else 0) == 0
            for priority in priorities:
                await jobs.put_many([b"%d" % number for number in range(MESSAGES)], priority=priority)
            assert await take(consumer, 1, 0) == 1
            while await take(other, 100, 0):
                pass
            assert await jobs.size() == 0
            core, before = core_of(consumer), cluster.ensemble.arrivals
            assert await take(consumer, 1, timeout) == 0
            assert cluster.ensemble.arrivals - before <= FEW
            assert core.dispatcher(core.queue_state("jobs")).counts.gone <= FEWEST

    run_virtual(main, limit=100)
