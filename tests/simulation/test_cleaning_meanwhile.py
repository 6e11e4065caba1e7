"""Clean-up and reassignment leave the data that is in use, and continue after problems with single queues."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import Delete, SetData
from tests.simulation.between import Between
from tests.simulation.test_known_configuration import play

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.timeout(120)
@pytest.mark.parametrize("options", [{"priority": 5}, {"delay": 60}])
@pytest.mark.parametrize("number", [1, 20, 500, 1500])
def test_the_tags_of_a_message_in_a_new_folder_are_not_swept(options: dict[str, Any], number: int) -> None:
    """There are more combinations of tags than are kept.

    They are swept while the first message of a new folder is put.
    """

    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, producer, consumer = sessions
        jobs = producer.queue("jobs")
        for start in range(0, 1010, 101):
            async with producer.transaction() as tx:
                for tag in range(start, start + 101):
                    tx.put(jobs, b"x", tags={"k": str(tag)})
        assert await jobs.purge() == 1010

        async def put() -> None:
            await jobs.put(b"late", tags={"k": "1009"}, **options)

        between = Between(operator, number, put)
        await operator.admin.clean("jobs")
        assert between.reached
        async with consumer.transaction() as tx:
            taken = await tx.take(consumer.queue("jobs"), timeout=300, filters=zq.Filter("k", "eq", "1009"))
        assert taken is not None

    play(program)


def test_large_messages_are_reassigned_to_other_nodes() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        producer, operator = sessions
        jobs = producer.queue("jobs")
        await jobs.configure(zq.QueueConfig(affinity="producer", reap_after=1, bundle=1))
        for _ in range(12):
            await jobs.put(b"x" * 600_000)
        await jobs.put(b"small")
        await asyncio.sleep(5)
        assert await operator.queue("jobs").admin.reap() == 10
        assert await operator.queue("jobs").admin.reap() == 3

    play(program, 2, options=({"node": "1"}, {"node": "2"}))


def test_a_queue_that_cannot_be_read_does_not_keep_others_from_being_cleaned() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        producer, operator = sessions
        for name in ("first", "jobs"):
            await producer.queue(name).put(b"m", ttl=1)
        await core_of(producer).zookeeper.multi([SetData("/zms/first", b"{not json")])
        await asyncio.sleep(100)
        with pytest.raises(zq.PayloadError, match="first"):
            await operator.admin.clean()
        assert await operator.queue("jobs").size() == 0

    play(program, 2)


@pytest.mark.parametrize(
    ("foreign", "parent"),
    [
        (lambda session: session.curator_queue("/app/q", lock_path="/app/q-locks"), "/app/q"),
        (lambda session: session.kazoo_queue("/app/q"), "/app/q/entries"),
    ],
)
def test_dead_letters_of_items_with_repeated_names_are_all_kept(
    foreign: Callable[[zq.QueueSession], zq.Queue[bytes]], parent: str
) -> None:
    """The numbers of items start again when their parent is created again."""

    async def program(sessions: list[zq.QueueSession]) -> None:
        producer, consumer = sessions
        bodies = [b"life %d" % life for life in range(3)]
        for body in bodies:
            await foreign(producer).put(body)
            async with consumer.transaction() as tx:
                message = await tx.take(foreign(consumer), timeout=5)
                assert message is not None
                tx.reject(message, "bad")
            await core_of(producer).zookeeper.multi([Delete(parent)])
            await asyncio.sleep(1)
        assert sorted(letter.body for letter in await foreign(producer).dead_letters.peek(10)) == bodies

    play(program, 2)


@pytest.mark.parametrize("number", range(1, 25))
def test_two_passes_that_remove_one_lock_leave_the_lock_of_a_consumer_that_claims_the_message_between_them(
    number: int,
) -> None:
    """A lease has lost its due node, so only a pass of clean-up ends it. The next lock has the same version."""

    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, second, consumer = sessions
        zookeeper = core_of(consumer).zookeeper
        base = core_of(consumer).queue_state("jobs").paths.base
        await consumer.queue("jobs").put(b"job")
        assert len(await consumer.queue("jobs").leases.take(lifetime=5)) == 1
        (due,) = await zookeeper.children(f"{base}/due")
        await zookeeper.multi([Delete(f"{base}/due/{due}")])
        await asyncio.sleep(50)
        async with consumer.transaction() as tx:

            async def clean_and_take() -> None:
                await second.admin.clean("jobs")
                assert await tx.take(consumer.queue("jobs"), timeout=30) is not None

            between = Between(operator, number, clean_and_take)
            await operator.admin.clean("jobs")
            if between.reached:
                assert len(await zookeeper.children(f"{base}/locks")) == 1
            else:
                assert await tx.take(consumer.queue("jobs"), timeout=30) is not None
        assert await consumer.queue("jobs").size() == 0

    play(program)
