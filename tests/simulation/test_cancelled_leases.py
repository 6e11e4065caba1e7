"""A session ends a lease whose taker was cancelled, but not the lease of another client on the same message."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.testing.simulator import Fault, run_virtual, simulated

if TYPE_CHECKING:
    from aiozkqueue.testing.simulator import Request
    from aiozkqueue.testing.simulator.server import ServerConnection

LEASE = 1.0
#: Seconds for which the first client gets no answer, less than its session timeout.
AWAY = 4.0


def test_the_lease_of_a_cancelled_taker_is_ended_early_but_not_that_of_the_next_one() -> None:
    assert not run_virtual(partial(is_leased_at_the_end, taken=False), limit=100)
    assert run_virtual(partial(is_leased_at_the_end, taken=True), limit=100)


async def is_leased_at_the_end(*, taken: bool) -> bool:
    """Cancel a taker whose commit is answered late; return whether the message is still leased afterwards.

    If it is ``taken`` meanwhile, another client leases it for a long time after the first lease.
    """
    async with (
        simulated() as cluster,
        cluster.connect(name="first") as first,
        cluster.connect(name="second") as second,
    ):
        now = asyncio.get_running_loop().time
        queue = second.queue("jobs")
        await queue.put(b"1")
        committed = asyncio.Event()
        answered = 0.0

        def judge(connection: ServerConnection, request: Request) -> Fault | None:
            nonlocal answered
            if connection.client.name != "first":
                return None
            if not committed.is_set() and "/due/" in str(request.argument):
                committed.set()
                answered = now() + AWAY
                return Fault.LOST_AFTER
            return Fault.LOST_BEFORE if now() < answered else None

        cluster.ensemble.judge = judge
        lifetime = LEASE if taken else 100 * LEASE
        taking = asyncio.create_task(first.queue("jobs").leases.take(lifetime=lifetime, timeout=1))
        await committed.wait()
        taking.cancel()
        if taken:
            assert len(await queue.leases.take(lifetime=100 * LEASE, timeout=2 * LEASE)) == 1
            assert now() < answered
        await asyncio.sleep(2 * AWAY)
        return not await queue.leases.take(timeout=0)
