"""Due nodes and locks that another program has changed: the message is still delivered at the end of its lock."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.session.internals import core_of
from aiozkqueue.testing.simulator import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster
from aiozkqueue.zookeeper import Delete, SetData
from tests.simulation.between import Between

if TYPE_CHECKING:
    import aiozkqueue as zq

LIFETIME = 30
DUE = "/zms/jobs/due"


@pytest.mark.parametrize("options", [{}, {"priority": -3}, {"delay": 1}, {"tags": {"a": 1}}])
@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"items/nope", b"items/item-ix-0000000007"])
def test_an_idle_consumer_gets_the_message_of_a_lease_whose_due_node_is_damaged(
    data: bytes, options: zq.PutOptions
) -> None:
    async def main() -> None:
        cluster, loop = make_cluster(), asyncio.get_running_loop()
        async with cluster.connect() as holder, cluster.connect() as idle:
            await holder.queue("jobs").put(b"x", **options)
            assert await holder.queue("jobs").leases.take(lifetime=LIFETIME, timeout=10)
            ends = loop.time() + LIFETIME
            zookeeper = core_of(holder).zookeeper
            (name,) = await zookeeper.children(DUE)
            await zookeeper.multi([SetData(f"{DUE}/{name}", data)])
            async with idle.transaction() as tx:
                assert await tx.take(idle.queue("jobs"), timeout=2 * LIFETIME) is not None
            assert loop.time() == pytest.approx(ends, abs=0.1)

    run_virtual(main)


def test_a_clean_up_never_removes_the_lock_of_a_consumer_instead_of_one_without_a_due_node() -> None:
    """Another program has deleted the due node. An operator releases the lock while the clean-up is about to."""

    async def clean(number: int) -> bool:
        cluster = make_cluster()
        async with cluster.connect() as cleaner, cluster.connect() as holder, cluster.connect() as other:
            jobs = holder.queue("jobs")
            await jobs.put(b"x")
            assert await jobs.leases.take(lifetime=LIFETIME, timeout=10)
            zookeeper = core_of(holder).zookeeper
            await zookeeper.multi([Delete(f"{DUE}/{name}") for name in await zookeeper.children(DUE)])
            await asyncio.sleep(3 * LIFETIME)
            async with holder.transaction() as tx:

                async def take() -> None:
                    await jobs.admin.release_claims()
                    assert await tx.take(jobs, timeout=10) is not None

                between = Between(cleaner, number, take)
                await cleaner.admin.clean("jobs")
                if between.reached:
                    async with other.transaction() as second:
                        assert await second.take(other.queue("jobs"), timeout=5) is None, number
            return between.reached

    numbers = 0
    while run_virtual(partial(clean, numbers + 1)):
        numbers += 1
    assert numbers > 10


def test_the_due_node_of_a_lock_that_another_program_deleted_does_not_end_the_next_lock() -> None:
    async def main() -> None:
        cluster, loop = make_cluster(), asyncio.get_running_loop()
        async with cluster.connect() as holder, cluster.connect() as idle:
            jobs = holder.queue("jobs")
            message = await jobs.put(b"x")
            assert await jobs.leases.take(lifetime=LIFETIME, timeout=10)
            await core_of(holder).zookeeper.multi([Delete(f"/zms/jobs/locks/lock-{message}")])
            assert await jobs.leases.take(lifetime=4 * LIFETIME, timeout=10)
            ends = loop.time() + 4 * LIFETIME
            async with idle.transaction() as tx:
                assert await tx.take(idle.queue("jobs"), timeout=8 * LIFETIME) is not None
            assert loop.time() == pytest.approx(ends, abs=0.1)

    run_virtual(main)
