"""A request or its reply is lost with the connection: it takes effect once, and the caller learns the outcome."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from tests.faults.account import ATTEMPT, BACKOFF, CLAIM, PUT, REGISTRATION, REJECT, SETTLE, slot_creation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aiozkqueue.testing import Fault, Request, ZooKeeperProxy
    from tests.faults.account import Account

WHEN = ("before", "after")
TIMES = (1, 3)

pytestmark = [pytest.mark.parametrize("when", WHEN), pytest.mark.parametrize("times", TIMES)]


def lose(proxy: ZooKeeperProxy, match: Callable[[Request], bool], when: str, times: int) -> Fault:
    return (proxy.lose_before if when == "before" else proxy.lose_after)(match, times=times)


@pytest.fixture
async def session(proxy: ZooKeeperProxy, root: str) -> AsyncIterator[zq.QueueSession]:
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as opened, asyncio.timeout(60):
        yield opened


async def test_a_commit_is_applied_once_and_returns(
    session: zq.QueueSession, proxy: ZooKeeperProxy, account: Account, when: str, times: int
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"a")
    async with session.transaction(autocommit=False) as tx:
        message = await tx.take(jobs)
        assert message is not None
        tx.put("results", b"from a")
        await session.queue("results").stats()
        fault = lose(proxy, SETTLE, when, times)
        await tx.commit()
        assert tx.outcome is zq.Outcome.COMMITTED
    assert len(fault.requests) == times
    assert await account.bodies("jobs") == []
    assert await account.bodies("results") == [b"from a"]
    assert await account.locks("jobs") == []


async def test_a_put_is_stored_once(
    session: zq.QueueSession, proxy: ZooKeeperProxy, account: Account, when: str, times: int
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"first")
    fault = lose(proxy, PUT, when, times)
    await jobs.put(b"second")
    assert fault.requests
    assert await account.bodies("jobs") == [b"first", b"second"]


async def test_a_rollback_leaves_no_lock_and_keeps_the_message(
    session: zq.QueueSession, proxy: ZooKeeperProxy, account: Account, when: str, times: int
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"a")
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(jobs) is not None
        fault = lose(proxy, SETTLE, when, times)
        await tx.rollback(delay=0)
    assert fault.requests
    assert await account.locks("jobs") == []
    assert await account.bodies("jobs") == [b"a"]
    async with session.transaction() as tx:
        redelivered = await tx.take(jobs)
        assert redelivered is not None
        assert redelivered.body == b"a"


async def test_a_rollback_of_several_requests_leaves_no_lock_and_releases_every_message(
    session: zq.QueueSession, proxy: ZooKeeperProxy, account: Account, when: str, times: int
) -> None:
    jobs = session.queue("jobs")
    identities = [message_id for _ in range(3) for message_id in await jobs.put_many([bytes(40_000)] * 10)]
    async with session.transaction(autocommit=False) as tx:
        assert len(await tx.take_many(jobs, 30)) == 30
        fault = lose(proxy, SETTLE, when, 2 * times)  # the request of the first part, and that of the next part
        await tx.rollback(delay=0)
        assert await account.locks("jobs") == []
    assert len(fault.requests) == 2 * times
    async with session.transaction() as tx:
        redelivered = await tx.take_many(jobs, 30)
        assert {message.id for message in redelivered} == set(identities)
        assert {message.attempt for message in redelivered} == {2}


async def test_a_rollback_with_a_delay_leaves_one_timed_lock(
    session: zq.QueueSession, proxy: ZooKeeperProxy, account: Account, when: str, times: int
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"a")
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(jobs) is not None
        fault = lose(proxy, BACKOFF, when, times)
        await tx.rollback(delay=1.5)
    assert fault.requests
    assert len(await account.locks("jobs")) == 1
    assert len(await account.view.children(account.path("jobs", "due"))) == 1
    assert not await account.view.ephemerals(account.path("jobs", "locks"))
    async with session.transaction() as tx:
        redelivered = await tx.take(jobs, timeout=30)
        assert redelivered is not None
        assert redelivered.attempt == 2
    assert await account.locks("jobs") == []


async def test_a_reject_creates_one_dead_letter(
    session: zq.QueueSession, proxy: ZooKeeperProxy, account: Account, when: str, times: int
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"a")
    fault = lose(proxy, REJECT, when, times)
    async with session.transaction() as tx:
        message = await tx.take(jobs)
        assert message is not None
        tx.reject(message, "not wanted")
    assert fault.requests
    assert await account.bodies("jobs") == []
    assert len(await account.bodies("jobs", "dlq")) == 1
    assert await account.locks("jobs") == []


async def test_a_claim_delivers_the_message_and_leaves_no_lock_behind(
    session: zq.QueueSession, proxy: ZooKeeperProxy, account: Account, when: str, times: int
) -> None:
    jobs = session.queue("jobs")
    await jobs.put_many([b"a", b"b"])
    fault = lose(proxy, CLAIM, when, times)
    async with session.transaction() as tx:
        messages = await tx.take_many(jobs, 10)
        assert [message.body for message in messages] == [b"a", b"b"]
        assert len(await account.locks("jobs")) == 2
    assert fault.requests
    assert await account.bodies("jobs") == []
    assert await account.locks("jobs") == []


async def test_a_lost_claim_request_does_not_affect_the_claim_of_another_session(
    session: zq.QueueSession, proxy: ZooKeeperProxy, account: Account, quick: str, root: str, when: str, times: int
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"a")
    fault = lose(proxy, CLAIM, when, times)
    taken: list[bytes] = []
    async with zq.connect(quick, root=root, session_timeout=20) as other:

        async def take(opened: zq.QueueSession) -> None:
            async with opened.transaction() as tx:
                taken.extend(message.body for message in await tx.take_many(opened.queue("jobs"), 2))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(take(session))
            await fault.struck()
            tasks.create_task(take(other))
    assert taken == [b"a"]
    await account.unlocked("jobs")
    assert await account.bodies("jobs") == []


async def test_an_attempt_is_counted_once(
    session: zq.QueueSession, proxy: ZooKeeperProxy, account: Account, when: str, times: int
) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(5))
    await jobs.put(b"a")
    fault = lose(proxy, ATTEMPT, when, times)
    async with jobs.consume(settle="explicit") as deliveries:
        delivery = await anext(deliveries)
        assert delivery.attempt == 1
        (record,) = await account.attempts("jobs")
        assert b'"attempts":1' in record
        await delivery.commit()
    assert fault.requests
    assert await account.attempts("jobs") == []


async def test_the_first_commit_slot_is_created(
    session: zq.QueueSession, proxy: ZooKeeperProxy, account: Account, when: str, times: int
) -> None:
    fault = lose(proxy, slot_creation, when, times)
    await session.queue("jobs").put(b"a")
    assert fault.requests
    assert await account.bodies("jobs") == [b"a"]


async def test_a_consumer_is_registered_once(
    session: zq.QueueSession, proxy: ZooKeeperProxy, account: Account, when: str, times: int
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"a")
    fault = lose(proxy, REGISTRATION, when, times)
    async with session.transaction() as tx:
        assert await tx.take(jobs) is not None
        assert len(await account.view.children(account.path("jobs", "consumers"))) == 1
    assert fault.requests
