"""The figures of a queue with bundles whose holder no longer holds them."""

from __future__ import annotations

import asyncio

import pytest

import aiozkqueue as zq
from aiozkqueue.operations.lag import Lag
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster
from tests.simulation.between import Between

#: Messages of the bundle.
NUMBER = 36


@pytest.mark.parametrize("end", ["death", "release"])
def test_the_messages_of_a_bundle_wait_again_when_its_holder_is_gone(end: str) -> None:
    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect(name="operator") as operator, cluster.connect(name="consumer") as consumer:
            jobs = operator.queue("jobs")
            lag = Lag(core_of(operator).handle("jobs"))
            await jobs.configure(zq.QueueConfig(bundle=64))
            await jobs.put_many([b"%d" % number for number in range(NUMBER)])

            async def figures() -> list[tuple[int, int, int]]:
                await asyncio.sleep(60)  # so that the lag is read again
                stats, late = await jobs.stats(), await lag.figures()
                assert stats.in_flight == await jobs.claimed()
                return [
                    (stats.size, stats.waiting, stats.in_flight),
                    (late["waiting"] + late["in_flight"], late["waiting"], late["in_flight"]),
                ]

            async with consumer.transaction(autocommit=False) as tx:
                assert len(await tx.take_many(consumer.queue("jobs"), NUMBER, timeout=1)) == NUMBER
                assert await figures() == [(NUMBER, 0, NUMBER)] * 2
                if end == "death":
                    cluster.expire("consumer")
                else:
                    assert await jobs.admin.release_claims() == NUMBER
                assert await figures() == [(NUMBER, NUMBER, 0)] * 2
                with pytest.raises(zq.SessionExpiredError if end == "death" else zq.ClaimLostError):
                    await tx.commit()

    run_virtual(main)


def test_a_bundle_that_becomes_single_items_while_its_queue_is_counted_counts_once() -> None:
    async def main() -> tuple[bool, list[int]]:
        cluster = make_cluster()
        async with cluster.connect(name="reader") as reader, cluster.connect(name="operator") as operator:
            jobs, lag = reader.queue("jobs"), Lag(core_of(reader).handle("jobs"))
            await jobs.configure(zq.QueueConfig(bundle=64))
            await jobs.put_many([b"%d" % number for number in range(NUMBER)])
            between = Between(reader, number, operator.queue("jobs").admin.unbundle)
            size, stats, late = await jobs.size(), await jobs.stats(), await lag.figures()
            return between.reached, [size, stats.size, late["waiting"] + late["in_flight"]]

    number = 1
    while True:
        reached, counted = run_virtual(main)
        assert counted == [NUMBER] * 3, number
        if not reached:
            break
        number += 1
    assert number > 30


def test_the_number_of_messages_put_grows_when_the_version_of_a_counter_wraps() -> None:
    """The server counts the versions in 32 bits: after 2147483647 comes the smallest negative number."""

    async def main() -> list[int]:
        cluster = make_cluster()
        async with cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=2))
            await jobs.put_many([b"0", b"1"])
            counted: list[int] = []
            for version in (2**31 - 2, 2**31 - 1, -(2**31)):
                for tree in {cluster.ensemble.tree, *(server.tree for server in cluster.ensemble.servers)}:
                    tree.nodes["/zms/jobs/bundled/0"].version = version
                counted.append((await jobs.stats()).put)
            return counted

    first, second, third = run_virtual(main)
    assert (second - first, third - second) == (1, 1)
