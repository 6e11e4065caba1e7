"""The guarantees of ZkQueue also hold here: one test for each of its features and guarantees.

The guarantees of rollbacks are in `test_rollbacks`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from tests.integration.queue.conftest import Locks, Opener, eventually, take_one, zookeeper_session

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing import ZooKeeperProxy
    from tests.observer import Observer

    Expire = Callable[[zq.QueueSession], Awaitable[None]]


# The features of ZkQueue's first version


async def test_multiple_consumers_with_correct_failover(
    session: zq.QueueSession, open_session: Opener, zookeeper_proxy: ZooKeeperProxy
) -> None:
    lost = await open_session(zookeeper_proxy.hosts, session_timeout=4)
    await session.queue("jobs").put(b"1")
    tx = lost.transaction(autocommit=False)
    held = await (await tx.__aenter__()).take(lost.queue("jobs"))
    assert held is not None
    zookeeper_proxy.stall()  # as if its machine had failed
    redelivered = await take_one(session)
    assert (redelivered.id, redelivered.value) == (held.id, b"1")
    zookeeper_proxy.heal()
    await tx.__aexit__(ValueError, ValueError(), None)


async def test_local_transactions_consume_n_elements_and_produce_k_elements(
    session: zq.QueueSession, locks: Locks
) -> None:
    left, right = session.queue("left"), session.queue("right")
    await left.put_many([b"1", b"2", b"3"])
    await right.put(b"4")
    async with session.transaction() as tx:
        assert len(await tx.take_many(left, 3)) == 3
        assert await tx.take(right) is not None
        tx.put("sums", b"6")
        tx.put("sums", b"4")
        tx.put("log", b"added")
        # Before the commit, no put is stored and no message is removed.
        assert (await left.size(), await right.size(), await session.queue("sums").size()) == (3, 1, 0)
    assert (await left.size(), await right.size()) == (0, 0)
    assert [message.value for message in await session.queue("sums").peek()] == [b"6", b"4"]
    assert await session.queue("log").size() == 1
    assert await locks("left") == await locks("right") == []


async def test_a_held_message_does_not_block_the_messages_behind_it(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    await session.queue("jobs").put_many([b"1", b"2"])
    async with session.transaction() as tx:
        first = await tx.take(session.queue("jobs"))
        assert first is not None
        second = await take_one(other)
        assert {first.value, second.value} == {b"1", b"2"}


async def test_flexible_consuming_policy_control(session: zq.QueueSession) -> None:
    once = session.queue("once", policy=zq.ConsumeOnce(exhausted="drop"))
    thrice = session.queue("thrice", policy=zq.ConsumeTimes(3, backoff=zq.Schedule([0, 0.1])))
    always = session.queue("always", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))
    calls: dict[str, int] = {}

    async def fail(delivery: zq.Delivery[bytes]) -> None:
        calls[delivery.queue] = delivery.attempt
        raise ValueError

    for queue in (once, thrice, always):
        await queue.put(b"poison")
    listeners = [session.listener(queue, fail) for queue in (once, thrice, always)]
    async with listeners[0], listeners[1], listeners[2]:

        async def decided() -> bool:
            return (await once.size(), await thrice.size()) == (0, 0) and calls.get("always", 0) > 3

        await eventually(decided)
    assert (calls["once"], calls["thrice"]) == (1, 3)
    assert (await once.dead_letters.size(), await thrice.dead_letters.size(), await always.size()) == (0, 1, 1)


async def test_a_listener_container_distributes_messages_to_its_handler(session: zq.QueueSession) -> None:
    jobs, results = session.queue("jobs"), session.queue("results")
    together = 0
    most = 0

    async def greet(delivery: zq.Delivery[bytes]) -> None:
        nonlocal together, most
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.02)
        delivery.put(results, b"Hello, " + delivery.value)
        together -= 1

    async with session.listener(jobs, greet, concurrency=4):
        await jobs.put_many([b"%d" % number for number in range(20)])

        async def done() -> bool:
            return await results.size() == 20

        await eventually(done)
    assert await jobs.size() == 0
    assert 1 < most <= 4
    # Closing the container does not close the session.
    await jobs.put(b"more")
    assert await jobs.size() == 1


async def test_each_queue_has_its_own_dead_letters(session: zq.QueueSession, server_view: Observer) -> None:
    queues = [session.queue(name) for name in ("jobs", "mail")]
    for queue in queues:
        await queue.put(b"1")
        async with session.transaction() as tx:
            message = await tx.take(queue)
            assert message is not None
            tx.reject(message, f"not for {queue.name}")
    for queue in queues:
        (dead,) = await queue.dead_letters.peek()
        assert (dead.queue, dead.reason) == (queue.name, f"not for {queue.name}")
        root = session._runtime.root
        assert len(await server_view.children(f"{root}/{queue.name}/dlq")) == 1


async def test_at_least_once_redelivers_a_message_until_it_is_committed(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))
    await jobs.put(b"1")
    for attempt in range(1, 8):
        async with session.transaction(autocommit=False) as tx:
            message = await tx.take(jobs, timeout=30)
            assert message is not None
            assert message.attempt == attempt
            await tx.rollback()
    assert (await take_one(session)).attempt == 8
    assert await jobs.size() == 0


# Guarantees


async def test_if_commit_returns_without_exception_the_transaction_is_committed(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    await session.queue("jobs").put(b"1")
    async with session.transaction(autocommit=False) as tx:
        await tx.take(session.queue("jobs"))
        result = tx.put("results", b"2")
        await tx.commit()
        # The changes are visible at once, and to every client.
        assert await server_view.children(f"{queue_root}/jobs/items") == []
        (name,) = await server_view.children(f"{queue_root}/results/items")
        assert result in name
        assert tx.outcome is zq.Outcome.COMMITTED


async def test_session_expiration_removes_all_locks_in_a_single_transaction(
    session: zq.QueueSession, other: zq.QueueSession, expire: Expire, server_view: Observer, queue_root: str
) -> None:
    for queue in ("jobs", "mail"):
        await session.queue(queue).put_many([b"1", b"2", b"3"])
    async with other.transaction(autocommit=False) as tx:
        await tx.take_many(other.queue("jobs"), 3)
        await tx.take_many(other.queue("mail"), 3)
        await expire(other)
        changes = set()
        for queue in ("jobs", "mail"):
            path = f"{queue_root}/{queue}/locks"
            stat = await server_view.stat(path)
            assert stat.numChildren == 0
            changes.add(stat.pzxid)
        assert len(changes) == 1, "the locks were removed by more than one transaction"
        with pytest.raises(zq.SessionExpiredError):
            await tx.commit()


@pytest.mark.parametrize("times", [1, 3])
async def test_consume_times_k_consumes_the_element_at_most_k_times(
    times: int, session: zq.QueueSession, other: zq.QueueSession, expire: Expire
) -> None:
    policy = zq.ConsumeTimes(times, backoff=zq.Fixed(0))
    jobs = session.queue("jobs", policy=policy)
    identity = await jobs.put(b"1")
    attempts = []
    for worker in [session, other] * times:
        async with worker.transaction(autocommit=False) as tx:
            message = await tx.take(worker.queue("jobs"))
            if message is not None:
                attempts.append(message.attempt)
                await expire(worker)  # the end of a session during the work counts too
                await tx.rollback()
    assert attempts == list(range(1, times + 1))

    async def buried() -> bool:
        return await jobs.dead_letters.size() == 1

    await eventually(buried)
    (dead,) = await jobs.dead_letters.peek()
    assert (dead.id, dead.attempts, dead.value) == (identity, times, b"1")
    assert f"{times} of {times} times" in dead.reason


async def test_consume_once_consumes_the_element_at_most_once(
    session: zq.QueueSession, other: zq.QueueSession, expire: Expire
) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeOnce())
    await jobs.put(b"1")
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(jobs) is not None
        await expire(session)
        await tx.rollback()
    async with other.transaction() as tx:
        assert await tx.take(other.queue("jobs"), timeout=0.3) is None

    async def buried() -> bool:
        return await jobs.dead_letters.size() == 1

    await eventually(buried)


# Implementation details that users rely on


async def test_take_locks_the_element_and_does_not_remove_it(session: zq.QueueSession, locks: Locks) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1")
    async with session.transaction() as tx:
        message = await tx.take(jobs)
        assert message is not None
        assert await jobs.size() == 1
        assert await locks() == [f"lock-{message.id}"]


async def test_put_records_the_element_in_memory_and_makes_no_network_calls(
    open_session: Opener, zookeeper_proxy: ZooKeeperProxy
) -> None:
    session = await open_session(zookeeper_proxy.hosts)
    before = sum(zookeeper_proxy.requests.values())
    async with session.transaction(autocommit=False) as tx:
        for _ in range(10):
            tx.put("jobs", b"1")
        assert sum(zookeeper_proxy.requests.values()) == before
        await tx.rollback()


async def test_transactions_share_one_zookeeper_session(session: zq.QueueSession, server_view: Observer) -> None:
    jobs = session.queue("jobs")
    await jobs.put_many([b"1", b"2"])
    async with session.transaction() as first, session.transaction() as second:
        await first.take(jobs)
        await second.take(jobs)
        owners = set((await server_view.ephemerals(f"{session._runtime.root}/jobs/locks")).values())
        assert owners == {zookeeper_session(session)}


async def test_sessions_do_not_affect_each_other_and_closing_one_invalidates_its_transactions(
    zookeeper: str, queue_root: str, session: zq.QueueSession, locks: Locks
) -> None:
    await session.queue("jobs").put_many([b"1", b"2"])
    async with session.transaction() as other_tx:
        assert await other_tx.take(session.queue("jobs")) is not None
        async with zq.connect(zookeeper, root=queue_root, session_timeout=20) as closing:
            tx = await closing.transaction(autocommit=False).__aenter__()
            assert await tx.take(closing.queue("jobs")) is not None
        assert len(await locks()) == 1  # its own lock is removed, the other session's lock is not
        with pytest.raises(zq.SessionClosedError):
            await tx.commit()
        await tx.rollback()
    assert await session.queue("jobs").size() == 1


async def test_any_exception_in_a_listener_rolls_the_transaction_back(session: zq.QueueSession, locks: Locks) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))
    await jobs.put(b"1")
    outcomes: list[int] = []

    async def fail_twice(delivery: zq.Delivery[bytes]) -> None:
        outcomes.append(delivery.attempt)
        delivery.put("results", b"%d" % delivery.attempt)
        if delivery.attempt < 3:
            raise RuntimeError

    async with session.listener(jobs, fail_twice):

        async def done() -> bool:
            return await jobs.size() == 0

        await eventually(done)
    assert outcomes == [1, 2, 3]
    assert [message.value for message in await session.queue("results").peek()] == [b"3"]
    assert await locks() == []


async def test_a_listener_survives_network_flaps_and_session_expirations(
    open_session: Opener, session: zq.QueueSession, zookeeper_proxy: ZooKeeperProxy, expire: Expire
) -> None:
    worker = await open_session(zookeeper_proxy.hosts)
    jobs, results = session.queue("jobs"), session.queue("results")

    async def copy(delivery: zq.Delivery[bytes]) -> None:
        delivery.put("results", delivery.value)

    async with worker.listener(worker.queue("jobs"), copy, concurrency=2):
        for number in range(6):
            await jobs.put(b"%d" % number)
            if number % 2:
                zookeeper_proxy.reset_connections()
            else:
                await expire(worker)

        async def done() -> bool:
            return await results.size() == 6

        await eventually(done, 60)
    assert sorted(message.value for message in await results.peek()) == [b"%d" % number for number in range(6)]
    assert await jobs.size() == 0
