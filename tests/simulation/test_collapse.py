"""A lone consumer does not repeat useless work on sets of duplicates."""

from __future__ import annotations

import asyncio
from typing import Any

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual, simulated

#: An idle consumer sends few requests in minutes. A consumer that lists repeatedly sends thousands.
FEW = 60
#: So many duplicates are removed before the claim of the newest message.
MANY = 150


def test_superseded_messages_are_not_claimed_again_and_the_others_keep_their_order() -> None:
    async def main() -> list[bytes]:
        async with simulated() as cluster, cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(collapse=True))
            await jobs.put_many([b"first", b"first", b"first", *(b"%02d" % number for number in range(40))])
            taken: list[bytes] = []
            while True:
                async with session.transaction() as tx:
                    message = await tx.take(jobs)
                if message is None:
                    return taken
                taken.append(message.body)

    assert run_virtual(main) == [b"first", *(b"%02d" % number for number in range(40))]


def test_a_delayed_collapsing_message_is_redelivered_without_constant_listings() -> None:
    async def main() -> int:
        async with simulated() as cluster, cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(collapse=True, policy=zq.AtLeastOnce(backoff=zq.Fixed(100))))
            await jobs.put_many([b"job", b"job", b"job"])
            async with session.transaction(autocommit=False) as tx:
                assert await tx.take(jobs) is not None
                await tx.rollback()
            async with session.transaction() as tx:
                before = cluster.ensemble.arrivals
                message = await tx.take(jobs, timeout=1000)
                assert message is not None, "the message was not redelivered"
                assert message.attempt == 2
                return cluster.ensemble.arrivals - before

    assert run_virtual(main) < FEW


def test_no_message_is_removed_that_was_put_after_a_queue_has_stopped_collapsing() -> None:
    """The session has listed these messages as duplicates when another of its tasks reads the new configuration."""

    async def main() -> None:
        async with simulated() as cluster, cluster.connect() as session, cluster.connect() as other:
            jobs, operated = session.queue("jobs"), other.queue("jobs")
            await jobs.configure(zq.QueueConfig(collapse=True))
            await jobs.put(b"before", key="k")
            zookeeper: Any = core_of(session).zookeeper  # Any: its methods are replaced
            list_children, listings = zookeeper.children_into, 0

            async def listed(path: str, *args: Any, **options: Any) -> Any:  # Any: passed through
                nonlocal listings
                listings += path.endswith("/items")
                if not path.endswith("/items") or listings != 2:  # the second one finds the duplicates
                    return await list_children(path, *args, **options)
                await operated.configure(zq.QueueConfig(collapse=False))
                await operated.put_many([b"%d" % number for number in range(MANY)], key="k")
                names = await list_children(path, *args, **options)
                await jobs.configuration()
                return names

            zookeeper.children_into = listed
            taken: list[bytes] = []
            while await operated.size():
                async with session.transaction() as tx:
                    taken += [message.body for message in await tx.take_many(jobs, MANY, timeout=1)]
            assert listings > 2
            assert sorted(taken) == sorted([b"before", *(b"%d" % number for number in range(MANY))])

    run_virtual(main)


def test_a_duplicate_put_while_its_message_is_handled_is_taken_next() -> None:
    async def main() -> None:
        async with simulated() as cluster, cluster.connect() as session, cluster.connect() as other:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(collapse=True))
            for round_ in range(3):
                await jobs.put_many([b"a", b"b", b"a", b"b"])
                for body in (b"a", b"b"):
                    async with session.transaction() as tx:
                        message = await tx.take(jobs)
                        assert message is not None, round_
                        assert message.body == body
                        await other.queue("jobs").put(body)
                await asyncio.sleep(1)
                for body in (b"a", b"b"):
                    async with session.transaction() as tx:
                        message = await tx.take(jobs)
                        assert message is not None, round_
                        assert message.body == body
                assert await jobs.size() == 0

    run_virtual(main)
