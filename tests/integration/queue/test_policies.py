"""Policies: their storage, the counting of attempts, the time of redelivery, and the end of a message."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

import pytest
from kazoo.security import make_acl

import aiozkqueue as zq
from aiozkqueue.errors import ConfigConflictError
from aiozkqueue.session.internals import state_of
from aiozkqueue.testing import TestClock
from tests.integration.queue.conftest import Locks, Opener, eventually, take_one

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.observer import Observer


# Storage of policies


async def test_a_policy_is_stored_with_the_queue_and_applies_to_every_client(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    await session.queue("jobs", policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0))).put(b"1")
    stored = json.loads(await server_view.get(f"{queue_root}/jobs"))
    assert stored["policy"] == {
        "kind": "consume-times",
        "times": 2,
        "exhausted": "dead-letter",
        "backoff": {"kind": "fixed", "delay": 0.0},
    }
    plain = other.queue("jobs")  # requests no policy
    assert (await plain.configuration()).policy == zq.ConsumeTimes(2, backoff=zq.Fixed(0))
    for _ in range(2):
        async with other.transaction(autocommit=False) as tx:
            assert await tx.take(plain, timeout=30) is not None
            await tx.rollback()
    assert (await plain.size(), await plain.dead_letters.size()) == (0, 1)


async def test_a_policy_is_added_to_a_queue_without_one(session: zq.QueueSession, other: zq.QueueSession) -> None:
    await session.queue("jobs").put(b"1")
    assert (await session.queue("jobs").configuration()).policy is None
    async with other.queue("jobs").consume(policy=zq.ConsumeOnce(), until_idle=0) as deliveries:
        async for delivery in deliveries:
            assert delivery.attempt == 1
    assert (await session.queue("jobs").configuration()).policy == zq.ConsumeOnce()


async def test_another_policy_conflicts_until_it_is_configured(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    await session.queue("jobs", policy=zq.ConsumeTimes(5)).put(b"1")
    with pytest.raises(
        ConfigConflictError, match=r"queue 'jobs' has the policy ConsumeTimes\(5.*aiozkqueue configure jobs --policy"
    ):
        session.queue("jobs", policy=zq.ConsumeTimes(7))
    with pytest.raises(ConfigConflictError, match="'jobs'"):
        session.queue("jobs").consume(policy=zq.ConsumeTimes(7))
    # The other session notices the conflict on its first use, whichever operation that is.
    with pytest.raises(ConfigConflictError, match="'jobs'"):
        await other.queue("jobs", policy=zq.ConsumeTimes(7)).put(b"2")
    with pytest.raises(ConfigConflictError, match="'jobs'"):
        async with other.queue("jobs").consume(policy=zq.ConsumeTimes(7)) as deliveries:
            await anext(deliveries)
    await other.queue("jobs").configure(zq.QueueConfig(policy=zq.ConsumeTimes(7)))
    await other.queue("jobs", policy=zq.ConsumeTimes(7)).put(b"2")
    # A session that has cached the old configuration uses the new one from the next claim.
    await session.queue("jobs").put(b"3")
    assert (await session.queue("jobs").configuration()).policy == zq.ConsumeTimes(7)
    for _ in range(3):
        await take_one(session)


async def test_each_call_raises_the_conflict_until_the_policies_agree(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    await session.queue("jobs", policy=zq.ConsumeTimes(5)).put(b"1")
    jobs = other.queue("jobs", policy=zq.ConsumeTimes(7))
    for _ in range(2):
        with pytest.raises(ConfigConflictError, match=r"has the policy ConsumeTimes\(5.*, not ConsumeTimes\(7"):
            await jobs.put(b"2")
        with pytest.raises(ConfigConflictError, match="'jobs'"):
            await jobs.cancel(id="x")
        with pytest.raises(ConfigConflictError, match="'jobs'"):
            async with other.transaction() as tx:
                await tx.take(jobs, timeout=30)
        with pytest.raises(ConfigConflictError, match="'jobs'"):
            async with other.transaction() as tx:
                tx.put("results", b"done")
                tx.put(jobs, b"2")
    assert (await session.queue("jobs").size(), await session.queue("results").size()) == (1, 0)
    await session.queue("jobs").configure(zq.QueueConfig(policy=zq.ConsumeTimes(7)))
    await jobs.put(b"2")
    assert await jobs.size() == 2


async def test_a_session_configures_the_policy_that_it_names_as_the_error_advises(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    await session.queue("jobs", policy=zq.ConsumeTimes(5)).put(b"1")
    jobs = other.queue("jobs", policy=zq.ConsumeTimes(7))
    await jobs.configure(zq.QueueConfig(policy=zq.ConsumeTimes(7)))  # without a call before
    await jobs.put(b"2")
    assert (await session.queue("jobs").configuration()).policy == zq.ConsumeTimes(7)


async def test_a_change_of_the_policy_that_is_denied_does_not_hide_the_conflict(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    await session.queue("jobs", policy=zq.ConsumeTimes(5)).put(b"1")
    jobs = other.queue("jobs", policy=zq.ConsumeTimes(7))
    allowed = [make_acl("world", "anyone", read=True, create=True, delete=True, admin=True)]
    await server_view.set_acl(f"{queue_root}/jobs", allowed)
    with pytest.raises(zq.AccessDeniedError):
        await jobs.configure(zq.QueueConfig(policy=zq.ConsumeTimes(7)))
    for _ in range(2):
        with pytest.raises(ConfigConflictError, match="'jobs'"):
            await jobs.put(b"2")


async def test_a_session_that_names_the_stored_policy_after_a_conflict_can_use_the_queue(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    await session.queue("jobs", policy=zq.ConsumeTimes(5)).put(b"1")
    with pytest.raises(ConfigConflictError):
        await other.queue("jobs", policy=zq.ConsumeTimes(7)).put(b"2")
    with pytest.raises(ConfigConflictError, match=r"has the policy ConsumeTimes\(5.*, not ConsumeTimes\(9"):
        await other.queue("jobs", policy=zq.ConsumeTimes(9)).put(b"2")
    await other.queue("jobs", policy=zq.ConsumeTimes(5)).put(b"2")
    assert await session.queue("jobs").size() == 2


async def test_a_conflict_that_a_running_session_declares_does_not_stop_its_other_work(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(5))
    await jobs.put(b"1")
    async with session.transaction() as tx:
        assert await tx.take(jobs, timeout=30) is not None
        await other.queue("jobs").configure(zq.QueueConfig(shards=2))
        state_of(jobs).invalidate()  # as by a refused write
        with pytest.raises(ConfigConflictError):
            await session.queue("jobs", policy=zq.ConsumeTimes(7)).cancel(id="x")
        tx.put(jobs, b"3")
    assert [message.body for message in await jobs.peek()] == [b"3"]


async def test_a_new_configuration_applies_from_the_next_claim(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))
    await jobs.put_many([b"1", b"2"])
    attempts: list[int] = []
    async with jobs.consume(until_idle=0, prefetch=1) as deliveries:
        async for delivery in deliveries:
            attempts.append(delivery.attempt)
            if len(attempts) == 3:
                await other.queue("jobs").configure(zq.QueueConfig(policy=zq.ConsumeTimes(4, backoff=zq.Fixed(0))))
            await delivery.rollback()
    assert await jobs.dead_letters.size() == 2
    assert len(attempts) == 8


# Attempts


async def test_attempts_count_deliveries(session: zq.QueueSession, server_view: Observer, queue_root: str) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(3, backoff=zq.Fixed(0)))
    identity = await jobs.put(b"1")
    async with session.transaction(autocommit=False) as tx:
        message = await tx.take(jobs)
        assert message is not None
        assert message.attempt == 1
        # The attempt was recorded before the message was delivered.
        stored = json.loads(await server_view.get(f"{queue_root}/jobs/meta/meta-{identity}"))
        assert stored["attempts"] == 1
        await tx.rollback()
    assert [message.attempt for message in await jobs.peek()] == [1]
    assert (await take_one(session)).attempt == 2
    assert await server_view.children(f"{queue_root}/jobs/meta") == []


async def test_the_default_policy_delays_the_retry_of_a_poison_message(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"poison")
    attempts = []
    async with jobs.consume(until_idle=0) as deliveries:
        async for delivery in deliveries:
            attempts.append(delivery.attempt)
            with pytest.raises(KeyError):
                async with delivery:
                    raise KeyError
    assert attempts == [1]  # the next attempt is due after about a second
    assert (await jobs.stats()).delayed == 1


# Redelivery


async def server_time(view: Observer, root: str) -> int:
    """Return the server's time in milliseconds, from a write."""
    await view.set(root, b"")
    stat = await view.stat(root)
    return int(stat.mtime)


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        (zq.Fixed(0.3), [0.3, 0.3, 0.3]),
        (zq.Schedule([0.1, 0.4]), [0.1, 0.4, 0.4]),
        (zq.Exponential(0.1, 2, 0.3, jitter=0), [0.1, 0.2, 0.3]),
    ],
    ids=["fixed", "schedule", "exponential"],
)
async def test_backoff_is_a_timed_lock_as_long_as_the_policy_says(
    backoff: zq.Backoff,
    expected: list[float],
    session: zq.QueueSession,
    server_view: Observer,
    queue_root: str,
    locks: Locks,
) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=backoff))
    identity = await jobs.put(b"1")
    await session.queue("beside").put(b"1")
    sent = time.monotonic()
    await session.queue("beside").put(b"2")
    answered = (time.monotonic() - sent) * 1000  # the maximum by which the session is behind the server's time
    for delay in expected:
        async with session.transaction(autocommit=False) as tx:
            assert await tx.take(jobs, timeout=30) is not None
            begun = await server_time(server_view, queue_root)
            await tx.rollback()
        assert await locks() == [f"lock-{identity}"]
        path = f"{queue_root}/jobs/locks/lock-{identity}"
        end = json.loads(await server_view.get(path))["end"]
        stat = await server_view.stat(path)
        assert stat.ephemeralOwner == 0
        assert await server_view.children(f"{queue_root}/jobs/due") == [f"{end:013d}-{identity}"]
        # All times are the server's; the end of the lock was computed in between.
        assert begun + 1000 * delay - answered - 2 <= end <= stat.ctime + 1000 * delay + 2


async def test_a_message_is_not_redelivered_before_its_backoff_ends(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0.5)))
    await jobs.put(b"1")
    async with session.transaction(autocommit=False) as tx:
        await tx.take(jobs)
        start = asyncio.get_running_loop().time()
        await tx.rollback()
    await take_one(other)
    assert asyncio.get_running_loop().time() - start > 0.48


@pytest.mark.parametrize("listening", ["before", "after"])
async def test_an_idle_consumer_receives_a_retry_without_other_traffic(
    listening: str, session: zq.QueueSession, zookeeper: str, queue_root: str
) -> None:
    await session.queue("jobs").put(b"1")

    async def fail_and_leave() -> None:
        connecting = zq.connect(zookeeper, root=queue_root, session_timeout=20)
        async with connecting as failing, failing.transaction(autocommit=False) as tx:
            assert await tx.take(failing.queue("jobs")) is not None
            await tx.rollback(delay=0.6)

    if listening == "after":
        await fail_and_leave()
        message = await take_one(session)
    else:
        async with session.transaction(autocommit=False) as held:
            assert await held.take(session.queue("jobs")) is not None
            taking = asyncio.create_task(take_one(session))
            await asyncio.sleep(0.2)  # long enough to be idle and have its watches set
            await held.rollback(delay=0.5)
        message = await taking
    assert (message.value, message.attempt) == (b"1", 2)


async def test_release_claims_ends_a_backoff(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1")
    async with session.transaction(autocommit=False) as tx:
        await tx.take(jobs)
        await tx.rollback(delay=60)
    assert await jobs.admin.release_claims() == 1
    assert (await take_one(session)).attempt == 2


async def test_a_backoff_remains_after_the_end_of_the_session_that_set_it(
    open_session: Opener, expire: Callable[[zq.QueueSession], Awaitable[None]]
) -> None:
    clock = TestClock()
    session, worker = await open_session(clock=clock), await open_session(clock=clock)
    await session.queue("jobs").put(b"1")
    async with worker.transaction(autocommit=False) as tx:
        await tx.take(worker.queue("jobs"))
        await tx.rollback(delay=600)
    await expire(worker)
    async with session.transaction() as tx:
        assert await tx.take(session.queue("jobs"), timeout=0.3) is None
    clock.advance(600)
    assert (await take_one(session)).attempt == 2


# Exhausted messages


async def test_an_exhausted_message_becomes_a_dead_letter_with_the_reason(
    session: zq.QueueSession,
) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0)))
    identity = await jobs.put(b"1", headers={"a": "b"})
    attempts: list[int] = []

    async def fail(delivery: zq.Delivery[bytes]) -> None:
        attempts.append(delivery.attempt)
        raise ValueError("no such order")

    async with session.listener(jobs, fail):

        async def dead() -> bool:
            return await jobs.dead_letters.size() == 1

        await eventually(dead)
    (letter,) = await jobs.dead_letters.peek()
    assert (letter.id, letter.value, letter.headers, letter.attempts) == (identity, b"1", {"a": "b"}, 2)
    assert (letter.attempt, repr(letter)) == (2, f"<DeadLetter {identity} of 'jobs', 1 bytes, attempt 2>")
    assert letter.reason == "delivered 2 of 2 times without success; last error: ValueError: no such order"
    assert attempts == [1, 2]


@pytest.mark.parametrize("policy", [zq.ConsumeTimes(1, exhausted="drop"), zq.ConsumeOnce(exhausted="drop")], ids=repr)
async def test_exhausted_drop_removes_the_message_permanently(policy: zq.Policy, session: zq.QueueSession) -> None:
    jobs = session.queue("jobs", policy=policy)
    await jobs.put(b"1")
    async with session.transaction(autocommit=False) as tx:
        await tx.take(jobs)
        await tx.rollback()
    assert (await jobs.size(), await jobs.dead_letters.size()) == (0, 0)


async def test_exhausted_drop_also_applies_after_the_death_of_a_holder(
    session: zq.QueueSession, other: zq.QueueSession, expire: Callable[[zq.QueueSession], Awaitable[None]]
) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeOnce(exhausted="drop"))
    await jobs.put(b"1")
    async with session.transaction(autocommit=False) as tx:
        await tx.take(jobs)
        await expire(session)
        await tx.rollback()
    async with other.transaction() as tx:
        assert await tx.take(other.queue("jobs"), timeout=0.3) is None

    async def dropped() -> bool:
        return (await jobs.size(), await jobs.dead_letters.size()) == (0, 0)

    await eventually(dropped)


async def test_a_consume_once_transaction_commits_normally(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeOnce())
    await jobs.put_many([b"%d" % number for number in range(20)])
    async with jobs.consume(until_idle=0) as deliveries:
        values = [delivery.value async for delivery in deliveries]
    assert values == [b"%d" % number for number in range(20)]
    assert (await jobs.size(), await jobs.dead_letters.size()) == (0, 0)
