"""Operators find and change messages even if other clients change the queue between their requests."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import run_virtual, simulated
from tests.simulation.between import Between
from tests.simulation.test_known_configuration import play

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    Change = Callable[[zq.QueueSession, str], Awaitable[zq.Alteration]]

FOREVER = 200


async def cancel(session: zq.QueueSession, message_id: str) -> zq.Alteration:
    return await session.queue("jobs").cancel(id=message_id)


async def cancel_running(session: zq.QueueSession, message_id: str) -> zq.Alteration:
    return await session.queue("jobs").cancel(id=message_id, running=True)


async def cancel_with_commit(session: zq.QueueSession, message_id: str) -> zq.Alteration:
    async with session.transaction() as tx:
        return await tx.cancel(session.queue("jobs"), id=message_id)


async def update(session: zq.QueueSession, message_id: str) -> zq.Alteration:
    return await session.queue("jobs").update(b"new", id=message_id)


async def changed(session: zq.QueueSession, message_id: str) -> bool:
    """Whether a message was cancelled or updated."""
    waiting = [message.body for message in await session.queue("jobs").peek(100) if message.id == message_id]
    return waiting in ([], [b"new"])


async def known(session: zq.QueueSession) -> None:
    """Have a session read the current configuration."""
    assert await session.queue("jobs").cancel(id="AAAAAAAAAAAA") is zq.Alteration.NOT_FOUND


NODES = ({"node": "1"}, {"node": "2"}, {"node": "3"})


def between_all(
    program: Callable[[list[zq.QueueSession], int], Awaitable[bool]], options: Sequence[dict[str, Any]] = ()
) -> None:
    """Run a program with the action after each of its requests in turn, until it makes no further request."""
    for number in range(1, FOREVER):
        reached: list[bool] = []

        async def run_once(opened: list[zq.QueueSession], number: int = number, reached: list[bool] = reached) -> None:
            reached.append(await program(opened, number))

        play(run_once, options=options)
        if not reached[0]:
            assert number > 3, "the action ran between two requests"
            return
    pytest.fail("it makes requests without end")


@pytest.mark.parametrize("change", [cancel, cancel_running, cancel_with_commit, update])
def test_messages_are_found_in_bundles_by_a_session_that_knows_of_none(change: Change) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, producer = sessions
        await producer.queue("jobs").put(b"0")
        await known(operator)
        await producer.queue("jobs").configure(zq.QueueConfig(bundle=64))
        ids = await producer.queue("jobs").put_many([b"%d" % number for number in range(64)])
        assert await change(operator, ids[40]) is zq.Alteration.DONE
        assert await changed(producer, ids[40])

    play(program, 2)


def test_a_move_takes_the_bundles_that_its_session_does_not_know_of() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, producer = sessions
        assert await operator.queue("jobs").cancel(id=await operator.queue("jobs").put(b"0"))
        await producer.queue("jobs").configure(zq.QueueConfig(bundle=64))
        await producer.queue("jobs").put_many([b"%d" % number for number in range(64)])
        reference = await operator.admin.moves.start("jobs", "elsewhere")
        await asyncio.sleep(30)
        status = await operator.admin.moves.status(reference)
        assert (status.state, status.moved) == ("done", 64)

    play(program, 2)


@pytest.mark.parametrize("options", [{"priority": 4}, {"delay": 30}, {"group": "g"}])
def test_a_queue_that_another_session_deleted_is_created_again_by_any_put(options: dict[str, Any]) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        producer, operator = sessions
        await producer.queue("jobs").put(b"0")
        await operator.queue("jobs").admin.delete(force=True)
        await producer.queue("jobs").put(b"1", **options)
        assert await operator.queue("jobs").size() == 1

    play(program, 2)


@pytest.mark.parametrize("change", [cancel, cancel_running, cancel_with_commit, update])
@pytest.mark.parametrize("offset", [number / 1000 for number in range(0, 40, 2)])
def test_a_message_that_is_reassigned_meanwhile_is_found(change: Change, offset: float) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, producer, other = sessions
        jobs = producer.queue("jobs")
        await jobs.configure(zq.QueueConfig(affinity="producer", reap_after=1, bundle=1))
        message_id = await jobs.put(b"m")
        await known(operator)
        await asyncio.sleep(3)
        reaping = asyncio.create_task(other.queue("jobs").admin.reap())
        await asyncio.sleep(offset)
        try:
            assert await change(operator, message_id) is zq.Alteration.DONE
            assert await changed(producer, message_id)
        except zq.NotCommittedError:
            assert change is cancel_with_commit, "the other changes are tried again"
        await reaping

    play(program, options=NODES)


@pytest.mark.parametrize("change", [cancel, cancel_with_commit, update])
def test_a_message_that_leaves_its_bundle_meanwhile_is_changed_or_held(change: Change) -> None:
    async def program(sessions: list[zq.QueueSession], number: int) -> bool:
        operator, producer, consumer = sessions
        jobs = producer.queue("jobs")
        await jobs.configure(zq.QueueConfig(bundle=64))
        ids = await jobs.put_many([b"%d" % each for each in range(40)])
        await known(operator)
        async with consumer.transaction(autocommit=False) as held:
            message = await held.take(consumer.queue("jobs"), timeout=1)
            assert message is not None
            between = Between(operator, number, partial(asyncio.sleep, 0.2))
            wanted = next(each for each in reversed(ids) if each != message.id)
            answer = await change(operator, wanted)
            assert await changed(producer, wanted) == (answer is zq.Alteration.DONE)
            await held.rollback()
        return between.reached

    between_all(program)


@pytest.mark.parametrize("change", [cancel, update])
def test_a_message_behind_a_retry_of_its_group_is_not_taken_from_its_holder(change: Change) -> None:
    async def program(sessions: list[zq.QueueSession], number: int) -> bool:
        operator, producer, consumer = sessions
        jobs, theirs = producer.queue("jobs"), consumer.queue("jobs")
        ids = [await jobs.put(b"%d" % each, group="g") for each in range(3)]
        async with consumer.transaction(autocommit=False) as tx:
            await tx.take(theirs, timeout=1)
            await tx.rollback(delay=1)
        await known(operator)
        taken: list[str] = []
        async with consumer.transaction(autocommit=False) as held:

            async def take() -> None:
                taken.extend(message.id for message in await held.take_many(theirs, 3, timeout=3))

            between = Between(operator, number, take)
            answer = await change(operator, ids[1])
            if between.reached:
                assert (answer is zq.Alteration.HELD) == (not await changed(producer, ids[1]))
                await held.commit()
            return between.reached

    between_all(program)


def test_a_reassignment_is_recorded_in_a_history_that_is_turned_on_meanwhile() -> None:
    unrecorded: list[int] = []

    async def program(sessions: list[zq.QueueSession], number: int) -> bool:
        operator, producer, other = sessions
        jobs = producer.queue("jobs")
        await jobs.configure(zq.QueueConfig(affinity="producer", reap_after=1, bundle=1))
        await jobs.put(b"m")
        await asyncio.sleep(3)
        change = partial(other.queue("jobs").configure, zq.QueueConfig(history=zq.History()))
        between = Between(operator, number, change)
        reaped = await operator.queue("jobs").admin.reap()
        records = [record.id async for record in jobs.history()]
        if between.reached and len(records) < reaped:
            unrecorded.append(number)
        return between.reached

    between_all(program, NODES)
    assert len(unrecorded) == 1, "the change that was answered before"


@pytest.mark.parametrize("settled", ["acknowledged", "renewed", "released"])
def test_the_token_of_an_ended_lease_settles_its_message_after_a_reassignment(settled: str) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        producer, operator, consumer = sessions
        jobs = producer.queue("jobs")
        await jobs.configure(zq.QueueConfig(affinity="producer", reap_after=3, bundle=1))
        await jobs.put(b"m")
        [lease] = await jobs.leases.take(lifetime=2)
        await asyncio.sleep(5)
        await producer.admin.clean("jobs")
        await asyncio.sleep(40)
        await operator.admin.clean("jobs")
        assert await operator.queue("jobs").admin.reap() == 1
        if settled == "acknowledged":
            await jobs.leases.acknowledge([lease.token])
        elif settled == "renewed":
            await jobs.leases.renew([lease.token], lifetime=600)
        else:
            await jobs.leases.release([lease])
        async with consumer.transaction() as tx:
            message = await tx.take(consumer.queue("jobs"), timeout=1)
        assert (message is not None) == (settled == "released")

    play(program, options=NODES)


def test_a_queue_that_is_deleted_meanwhile_is_not_created_again_by_the_end_of_its_bundles() -> None:
    async def program(sessions: list[zq.QueueSession], number: int) -> bool:
        operator, producer, other = sessions
        await producer.queue("jobs").configure(zq.QueueConfig(bundle=64))
        await producer.queue("jobs").put_many([b"%d" % each for each in range(36)])
        between = Between(operator, number, partial(other.queue("jobs").admin.delete, force=True))
        assert await operator.queue("jobs").admin.unbundle() == 0
        assert await producer.queue("jobs").exists() is not between.reached
        return between.reached

    between_all(program)


async def move_all(session: zq.QueueSession, _: str) -> None:
    reference = await session.admin.moves.start("jobs", "others")
    while (await session.admin.moves.status(reference)).ended is None:  # noqa: ASYNC110 - in ZooKeeper
        await asyncio.sleep(1)


async def purge(session: zq.QueueSession, _: str) -> int:
    return await session.queue("jobs").purge()


@pytest.mark.parametrize("operation", [cancel, update, move_all, purge])
def test_a_message_is_not_taken_from_its_holder_if_another_lock_became_that_of_the_message(
    operation: Callable[[zq.QueueSession, str], Awaitable[object]],
) -> None:
    """The queue becomes ordered between two requests of an operator, and a consumer takes the message in order."""

    async def program(sessions: list[zq.QueueSession], number: int) -> bool:
        operator, producer, consumer = sessions
        jobs = producer.queue("jobs")
        await jobs.configure(zq.QueueConfig(bundle=1))
        message_id = await jobs.put(b"old")
        tx = await consumer.transaction(autocommit=False).__aenter__()
        taken: list[zq.Message[bytes] | None] = []

        async def take_in_order() -> None:
            await jobs.configure(zq.QueueConfig(ordered=True))
            taken.append(await tx.take(consumer.queue("jobs"), timeout=1))

        between = Between(operator, number, take_in_order)
        operating = asyncio.ensure_future(operation(operator, message_id))
        await asyncio.wait([operating], timeout=5)
        while between.reached and not taken:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)
        if taken and taken[0] is not None:
            await tx.commit()
        else:
            await tx.rollback()
        await operating
        return between.reached

    between_all(program, [{}, {}, {}])


@pytest.mark.parametrize("operation", [cancel, move_all, purge])
def test_a_message_that_ends_after_the_history_was_turned_on_is_recorded(
    operation: Callable[[zq.QueueSession, str], Awaitable[object]],
) -> None:
    async def program(sessions: list[zq.QueueSession], number: int) -> bool:
        operator, producer, other = sessions
        jobs = producer.queue("jobs")
        await jobs.configure(zq.QueueConfig(bundle=1))
        message_id = await jobs.put(b"old")
        left: list[int] = []

        async def turn_on() -> None:
            await other.queue("jobs").configure(zq.QueueConfig(history=zq.History()))
            left.append(await jobs.size())

        between = Between(operator, number, turn_on)
        await operation(operator, message_id)
        assert await jobs.size() == 0
        if between.reached:
            assert (await jobs.stats()).records == left[0]
        return between.reached

    between_all(program, [{}, {}, {}])


def test_a_move_takes_a_message_that_is_reassigned_meanwhile() -> None:
    async def program(sessions: list[zq.QueueSession], number: int) -> bool:
        operator, producer, other = sessions
        jobs = producer.queue("jobs")
        await jobs.configure(zq.QueueConfig(affinity="producer", reap_after=1, bundle=1))
        await jobs.put(b"m")
        await asyncio.sleep(3)
        between = Between(operator, number, other.queue("jobs").admin.reap)
        await move_all(operator, "")
        assert (await jobs.size(), await other.queue("others").size()) == (0, 1), number
        return between.reached

    between_all(program, NODES)


@pytest.mark.parametrize("operation", [cancel, move_all])
def test_a_message_that_was_claimed_by_a_session_that_has_died_meanwhile_leaves_no_record(
    operation: Callable[[zq.QueueSession, str], Awaitable[object]],
) -> None:
    """The session dies between two requests of an operator, after it has recorded an attempt."""

    async def main() -> bool:
        async with simulated() as cluster, cluster.connect() as operator, cluster.connect(name="consumer") as consumer:
            jobs = operator.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=1, policy=zq.ConsumeTimes(5)))
            message_id = await jobs.put(b"m")

            async def take_and_die() -> None:
                tx = await consumer.transaction(autocommit=False).__aenter__()
                await tx.take(consumer.queue("jobs"), timeout=1)
                cluster.expire("consumer")

            between = Between(operator, number, take_and_die)
            await operation(operator, message_id)
            await asyncio.sleep(5)
            assert await jobs.size() == 0
            assert [path for path in cluster.ensemble.tree.nodes if path.startswith("/zms/jobs/meta/")] == [], number
            return between.reached

    number = 1
    while run_virtual(main, limit=200):
        number += 1
    assert number > 3
