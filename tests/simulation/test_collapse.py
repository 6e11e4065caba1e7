"""A lone consumer does not repeat useless work on sets of duplicates."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import GivenUpError
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.zookeeper import Create, NoAuthError, NoNodeError
from tests.simulation.test_known_configuration import play
from tests.simulation.test_lasting_refusals import refuse

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from aiozkqueue.zookeeper.errors import NodeError

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


@pytest.mark.parametrize("number", [1, MANY])
@pytest.mark.parametrize("history", [None, zq.History()], ids=["plain", "history"])
@pytest.mark.parametrize("keys", ["key", "payload"])
def test_a_call_ends_as_soon_as_a_newer_message_of_its_key_replaces_it(
    number: int, history: zq.History | None, keys: str
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        caller, consumer = sessions
        options: Any = {"key": "k"} if keys == "key" else {}  # Any: keyword arguments of a put
        jobs = caller.queue("jobs")
        await jobs.configure(zq.QueueConfig(collapse=True, history=history))
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(ended(jobs.call(b"1", timeout=1000, **options))) for _ in range(number)]
            await asyncio.sleep(5)
            newest = await jobs.put(b"1", **options)
            async with consumer.transaction() as tx:
                message = await tx.take(consumer.queue("jobs"), timeout=5)
                assert message is not None
                assert message.id == newest
        assert {str(await call).rpartition(": ")[2] for call in calls} == {"a newer message of its key has replaced it"}
        assert await jobs.size() == 0

    play(program, 2)


async def ended(call: Awaitable[object]) -> GivenUpError:
    with pytest.raises(GivenUpError) as error:
        await call
    return error.value


@pytest.mark.parametrize("refusal", [NoAuthError, NoNodeError])
def test_the_newest_message_is_taken_although_the_caller_of_an_older_one_cannot_be_answered(
    refusal: type[NodeError],
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        caller, consumer = sessions
        jobs = caller.queue("jobs")
        await jobs.configure(zq.QueueConfig(collapse=True))
        with pytest.raises(zq.errors.NoReplyError):
            await jobs.call(b"1", timeout=5)
        await jobs.put(b"1")
        refused = refuse(
            consumer,
            lambda operation: isinstance(operation, Create) and "/failed-" in operation.path,
            refusal(),
        )
        async with consumer.transaction() as tx:
            assert await tx.take(consumer.queue("jobs"), timeout=5) is not None
        assert len(refused) == 1
        assert await jobs.size() == 0

    play(program, 2)
