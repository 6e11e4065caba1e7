"""The rules of transactions: the end of a block, the timeouts of a take, and the errors of a commit."""

from __future__ import annotations

import asyncio
import warnings
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import DirectPutWarning, UncommittedWarning
from aiozkqueue.queue.commit.group_commit import FULL_WEIGHT
from aiozkqueue.session.internals import work_of
from tests.integration.queue.conftest import Locks, Opener, eventually, no_locks, take_one

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing import ZooKeeperProxy
    from tests.observer import Observer


# Leaving


async def test_begin_commits_when_its_block_is_left_cleanly(session: zq.QueueSession) -> None:
    async with session.transaction() as tx:
        tx.put("jobs", b"1")
    assert tx.outcome is zq.Outcome.COMMITTED
    assert await session.queue("jobs").size() == 1


async def test_begin_rolls_back_and_passes_on_the_exception_of_its_block(
    session: zq.QueueSession, locks: Locks
) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))
    await jobs.put(b"1")
    with pytest.raises(KeyError, match="mine"):
        async with session.transaction() as tx:
            await tx.take(jobs)
            tx.put("results", b"never")
            raise KeyError("mine")
    assert tx.outcome is zq.Outcome.ROLLED_BACK
    assert await locks() == []
    assert await session.queue("results").size() == 0


async def test_transactions_that_are_left_without_a_commit_at_one_place_are_reported_once(
    session: zq.QueueSession,
) -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for _ in range(3):
            async with session.transaction(autocommit=False) as tx:
                tx.put("jobs", b"1")
    assert [warning.category for warning in shown] == [UncommittedWarning]


async def test_transaction_warns_of_undecided_takes_or_puts_only_on_a_clean_exit(session: zq.QueueSession) -> None:
    with pytest.warns(UncommittedWarning, match="autocommit=False"):
        async with session.transaction(autocommit=False) as tx:
            tx.put("jobs", b"1")
    assert tx.outcome is zq.Outcome.ROLLED_BACK
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with session.transaction(autocommit=False):
            pass  # nothing to commit or to roll back
        async with session.transaction(autocommit=False) as tx:
            tx.put("jobs", b"1")
            await tx.rollback()
        async with session.transaction(autocommit=False) as tx:
            tx.put("jobs", b"1")
            await tx.commit()
        with pytest.raises(KeyError):
            async with session.transaction(autocommit=False) as tx:
                tx.put("jobs", b"1")
                raise KeyError
    assert await session.queue("jobs").size() == 1


async def test_the_end_of_a_block_does_not_settle_a_settled_transaction_again(session: zq.QueueSession) -> None:
    async with session.transaction() as tx:
        tx.put("jobs", b"1")
        await tx.rollback()
    assert tx.outcome is zq.Outcome.ROLLED_BACK
    async with session.transaction() as tx:
        tx.put("jobs", b"1")
        await tx.commit()
    assert await session.queue("jobs").size() == 1


async def test_an_empty_transaction_commits(session: zq.QueueSession) -> None:
    async with session.transaction() as tx:
        pass
    assert tx.outcome is zq.Outcome.COMMITTED


async def test_a_refused_commit_at_the_end_of_a_block_raises_and_releases_every_message(
    session: zq.QueueSession, locks: Locks
) -> None:
    jobs = session.queue("jobs")
    await jobs.put_many([b"1", b"2"])
    with pytest.raises(zq.ClaimLostError, match=r"message \w+ of queue 'jobs'"):
        async with session.transaction() as tx:
            await tx.take_many(jobs, 2)
            tx.put("results", b"never")
            await jobs.admin.release_claims()
    assert tx.outcome is zq.Outcome.ROLLED_BACK
    assert await locks() == []
    assert (await jobs.size(), await session.queue("results").size()) == (2, 0)


@pytest.mark.parametrize("lost", [0, 1, 2])
async def test_a_refused_commit_names_the_message_that_was_lost(
    session: zq.QueueSession, queue_root: str, server_view: Observer, lost: int
) -> None:
    jobs = session.queue("jobs")
    ids = await jobs.put_many([b"1", b"2", b"3"])
    items = f"{queue_root}/jobs/items"
    [name] = [name for name in await server_view.children(items) if ids[lost] in name]
    with pytest.raises(zq.ClaimLostError, match=f"message {ids[lost]} of queue 'jobs'"):
        async with session.transaction() as tx:
            assert len(await tx.take_many(jobs, 3, timeout=30)) == 3
            tx.put("results", b"never")
            await server_view.set(f"{items}/{name}", b"of another version")
    assert (await jobs.size(), await session.queue("results").size()) == (3, 0)


async def test_a_cancelled_take_does_not_release_the_claims_of_a_commit_in_progress(
    session: zq.QueueSession, locks: Locks
) -> None:
    """Two tasks may not share a transaction; a program that does so loses neither messages nor its session."""
    jobs = session.queue("jobs")
    await jobs.put_many([b"1", b"2"])
    async with session.transaction(autocommit=False) as tx:
        first = await tx.take(jobs, timeout=30)
        assert first is not None
        [claim] = work_of(tx).claims
        committing = asyncio.create_task(tx.commit())
        await asyncio.sleep(0)  # the commit is in progress
        await work_of(tx).release_unseen([claim])
        await committing
    assert tx.outcome is zq.Outcome.COMMITTED
    assert [message.body for message in await jobs.peek()] == [b"2"]
    assert await locks() == []
    assert (await take_one(session)).body == b"2"


async def test_a_commit_of_several_kinds_of_puts_continues_when_one_of_their_folders_is_missing(
    session: zq.QueueSession, queue_root: str, server_view: Observer
) -> None:
    jobs, results = session.queue("jobs"), session.queue("results")
    await jobs.put_many([b"1", b"2"])
    await results.put(b"makes the queue")
    async with session.transaction() as tx:
        assert await tx.take(results, timeout=30)
    async with session.transaction() as tx:
        assert len(await tx.take_many(jobs, 2, timeout=30)) == 2
        tx.put("results", b"plain")
        tx.put("others", b"with a record of its key", key="k", unique=True)
        await server_view.delete(f"{queue_root}/results/items")
    assert (await jobs.size(), await results.size(), await session.queue("others").size()) == (0, 1, 1)


async def test_enter_and_exit_may_happen_in_different_tasks(zookeeper: str, queue_root: str) -> None:
    connecting = zq.connect(zookeeper, root=queue_root, session_timeout=20)
    session = await asyncio.create_task(connecting.__aenter__())
    block = session.transaction()
    tx = await asyncio.create_task(block.__aenter__())
    tx.put("jobs", b"1")
    await asyncio.create_task(block.__aexit__(None, None, None))
    assert await session.queue("jobs").size() == 1
    await asyncio.create_task(connecting.__aexit__(None, None, None))
    with pytest.raises(zq.SessionClosedError):
        await session.queue("jobs").size()


async def test_the_block_of_a_session_raises_an_exception_of_its_body_unchanged(
    zookeeper: str, queue_root: str
) -> None:
    with pytest.raises(KeyError, match="mine") as raised:
        async with zq.connect(zookeeper, root=queue_root, session_timeout=20) as session:
            await session.queue("jobs").put(b"1")
            raise KeyError("mine")
    assert not isinstance(raised.value, BaseExceptionGroup)


# Taking


async def test_take_with_timeout_0_looks_once_and_returns_none(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    async with session.transaction() as tx:
        assert await tx.take(jobs) is None
        assert await tx.take(jobs, timeout=0) is None
        assert await tx.take_many(jobs, 5) == []


@pytest.mark.parametrize("wait", [0.3, timedelta(milliseconds=300)])
async def test_take_waits_for_its_timeout_and_returns_none(session: zq.QueueSession, wait: float | timedelta) -> None:
    loop = asyncio.get_running_loop()
    async with session.transaction() as tx:
        await tx.take(session.queue("jobs"))  # opens the queue
        start = loop.time()
        assert await tx.take(session.queue("jobs"), timeout=wait) is None
        assert loop.time() - start > 0.29
        assert await tx.take_many(session.queue("jobs"), 2, timeout=wait) == []


async def test_take_with_timeout_none_waits_until_it_gets_a_message(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    async with session.transaction() as tx:
        taking = asyncio.create_task(tx.take(session.queue("jobs"), timeout=None))
        await asyncio.sleep(0.3)
        assert not taking.done()
        identity = await other.queue("jobs").put(b"1")
        message = await asyncio.wait_for(taking, 30)
        assert message is not None
        assert message.id == identity


async def test_take_many_returns_the_waiting_messages_up_to_its_limit(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put_many([b"%d" % number for number in range(150)])
    async with session.transaction() as tx:
        first = await tx.take_many(jobs, 100)
        assert [message.value for message in first] == [b"%d" % number for number in range(100)]
        assert len(await tx.take_many(jobs, 100, timeout=None)) == 50
    assert await jobs.size() == 0


async def test_a_take_waits_for_the_connection(
    open_session: Opener, session: zq.QueueSession, zookeeper_proxy: ZooKeeperProxy
) -> None:
    worker = await open_session(zookeeper_proxy.hosts)
    await session.queue("jobs").put(b"1")
    zookeeper_proxy.refuse()
    zookeeper_proxy.reset_connections()
    async with worker.transaction() as tx:
        taking = asyncio.create_task(tx.take(worker.queue("jobs")))
        await asyncio.sleep(0.3)
        assert not taking.done()
        await zookeeper_proxy.listen()
        assert await asyncio.wait_for(taking, 30) is not None


async def test_a_single_consumer_takes_messages_in_the_order_of_their_puts(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    for number in range(5):
        await jobs.put(b"%d" % number)
    assert [(await take_one(session)).value for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


async def test_reject_and_release_take_effect_with_the_commit(session: zq.QueueSession, locks: Locks) -> None:
    jobs = session.queue("jobs")
    await jobs.put_many([b"bad", b"later", b"now", b"good"])
    async with session.transaction() as tx:
        bad, later, now, good = await tx.take_many(jobs, 4)
        tx.reject(bad, "malformed")
        tx.release(later, delay=60)
        tx.release(now)
        assert await jobs.dead_letters.size() == 0
    assert [(dead.id, dead.reason) for dead in await jobs.dead_letters.peek()] == [(bad.id, "malformed")]
    assert await locks() == [f"lock-{later.id}"]
    assert (await take_one(session)).id == now.id
    assert [message.id for message in await jobs.peek()] == [later.id]
    assert good.id not in {message.id for message in await jobs.peek()}


# Outcomes of commits


async def test_the_outcome_of_a_commit_that_timed_out_is_known_later(
    open_session: Opener, session: zq.QueueSession, zookeeper_proxy: ZooKeeperProxy
) -> None:
    worker = await open_session(zookeeper_proxy.hosts)
    await worker.queue("jobs").put(b"1")  # creates its commit slot
    async with worker.transaction(autocommit=False) as tx:
        await tx.take(worker.queue("jobs"))
        zookeeper_proxy.stall()
        with pytest.raises(zq.OutcomeUnknownError, match=r"session\.outcome") as raised:
            await tx.commit(timeout=0.3)
        assert raised.value.transaction_id == tx.id
        outcomes = [tx.outcome, await worker.outcome(tx.id, timeout=0.1)]
        zookeeper_proxy.heal()
        outcomes += [await worker.outcome(tx.id), tx.outcome]
    assert outcomes == [zq.Outcome.UNKNOWN] * 2 + [zq.Outcome.COMMITTED] * 2
    assert await session.queue("jobs").size() == 0


async def test_a_commit_without_a_connection_ends_within_its_timeout(
    open_session: Opener, session: zq.QueueSession, zookeeper_proxy: ZooKeeperProxy, locks: Locks
) -> None:
    worker = await open_session(zookeeper_proxy.hosts, session_timeout=20)
    await session.queue("jobs").put(b"1")
    async with worker.transaction(autocommit=False) as tx:
        await tx.take(worker.queue("jobs"))
        tx.put("jobs", b"2")
        zookeeper_proxy.refuse()
        zookeeper_proxy.reset_connections()
        start = asyncio.get_running_loop().time()
        with pytest.raises((zq.NotCommittedError, zq.OutcomeUnknownError)):
            await tx.commit(timeout=0.3)
        assert asyncio.get_running_loop().time() - start < 10  # half of a session timeout
        await zookeeper_proxy.listen()
        outcome = await worker.outcome(tx.id, timeout=30)
        assert outcome in {zq.Outcome.COMMITTED, zq.Outcome.ROLLED_BACK}
    (left,) = await session.queue("jobs").peek()
    assert left.value == (b"2" if outcome is zq.Outcome.COMMITTED else b"1")

    async def unlocked() -> bool:
        return await locks() == []

    await eventually(unlocked, 30)  # the release is sent once there is a connection


async def test_the_outcome_of_any_transaction_of_the_session_can_be_asked(session: zq.QueueSession) -> None:
    async with session.transaction(autocommit=False) as tx:
        assert await session.outcome(tx.id) is tx.outcome is zq.Outcome.OPEN
        tx.put("jobs", b"1")
        await tx.commit()
    assert await session.outcome(tx.id) is zq.Outcome.COMMITTED
    async with session.transaction(autocommit=False) as tx:
        await tx.rollback()
    assert await session.outcome(tx.id) is zq.Outcome.ROLLED_BACK
    assert await session.outcome("never-seen") is zq.Outcome.UNKNOWN


@pytest.mark.parametrize("size", [1, FULL_WEIGHT])
async def test_an_expired_session_fails_its_transactions_and_writes_nothing_more(
    session: zq.QueueSession,
    other: zq.QueueSession,
    expire: Callable[[zq.QueueSession], Awaitable[None]],
    locks: Locks,
    size: int,
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1")
    async with session.transaction(autocommit=False) as tx:
        message = await tx.take(jobs)
        assert message is not None
        await expire(session)
        async with other.transaction() as later:
            redelivered = await later.take(other.queue("jobs"), timeout=30)
            assert redelivered is not None
            assert redelivered.id == message.id
            with pytest.raises(zq.SessionExpiredError):
                await tx.take(jobs)
            tx.put(jobs, bytes(size))
            assert await jobs.size() == 1  # it is connected again
            with pytest.raises(zq.SessionExpiredError):
                await tx.commit()
            await tx.rollback()
            assert await locks() == [f"lock-{message.id}"]  # the lock of the other session
    async with session.transaction() as tx:  # the session continues
        tx.put("jobs", b"2")
    assert [message.value for message in await jobs.peek()] == [b"2"]


# Puts outside the transaction


async def test_a_direct_put_inside_an_open_transaction_is_immediate_and_warns(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    with pytest.warns(DirectPutWarning, match=r"tx\.put"):
        async with session.transaction(autocommit=False) as tx:
            await jobs.put(b"1")
            await tx.rollback()
    assert await jobs.size() == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await jobs.put(b"2")  # no transaction is open
        async with session.transaction(autocommit=False) as tx:
            await tx.rollback()
            await jobs.put(b"3")


async def test_a_direct_put_warns_after_an_inner_transaction_was_left_too(session: zq.QueueSession) -> None:
    async with session.transaction():
        async with session.transaction():
            pass
        with pytest.warns(DirectPutWarning):
            await session.queue("jobs").put(b"1")


async def test_closing_a_session_releases_its_messages(
    zookeeper: str, queue_root: str, session: zq.QueueSession, locks: Locks
) -> None:
    await session.queue("jobs").put_many([b"1", b"2"])
    async with zq.connect(zookeeper, root=queue_root, session_timeout=30) as closing:
        tx = await closing.transaction(autocommit=False).__aenter__()
        await tx.take_many(closing.queue("jobs"), 2)

    await no_locks(locks, 15)  # long before the session would time out
    assert {(await take_one(session)).value, (await take_one(session)).value} == {b"1", b"2"}


async def test_many_commits_without_a_connection_all_end_within_their_timeouts(
    open_session: Opener, session: zq.QueueSession, zookeeper_proxy: ZooKeeperProxy, locks: Locks
) -> None:
    worker = await open_session(zookeeper_proxy.hosts, session_timeout=20)
    jobs = session.queue("jobs")
    await jobs.put_many([b"%d" % number for number in range(12)])
    transactions = [await worker.transaction(autocommit=False).__aenter__() for _ in range(12)]
    for tx in transactions:
        assert await tx.take(worker.queue("jobs")) is not None
        tx.put("results", b"1")
    await session.queue("results").put(b"0")
    zookeeper_proxy.refuse()
    zookeeper_proxy.reset_connections()
    loop = asyncio.get_running_loop()

    async def commit(tx: zq.Transaction) -> float:
        start = loop.time()
        with pytest.raises((zq.NotCommittedError, zq.OutcomeUnknownError)):
            await tx.commit(timeout=0.3)
        return loop.time() - start

    commits = [asyncio.create_task(commit(tx)) for tx in transactions[:6]]
    await asyncio.sleep(0.05)
    commits += [asyncio.create_task(commit(tx)) for tx in transactions[6:]]
    done, late = await asyncio.wait(commits, timeout=15)
    await zookeeper_proxy.listen()
    assert not late
    assert max(commit.result() for commit in done) < 10  # half of a session timeout
    outcomes = [await worker.outcome(tx.id, timeout=30) for tx in transactions]
    committed = outcomes.count(zq.Outcome.COMMITTED)
    assert committed + outcomes.count(zq.Outcome.ROLLED_BACK) == 12
    await no_locks(locks)
    assert (await jobs.size(), await session.queue("results").size()) == (12 - committed, 1 + committed)


@pytest.mark.parametrize("count", [128, 500, 1000])
async def test_take_many_returns_the_oldest_messages_in_order(session: zq.QueueSession, count: int) -> None:
    """They are claimed in several concurrent batches, and no message is released and taken again after later ones."""
    queue = session.queue("jobs")
    bodies = [b"%04d" % number for number in range(1100)]
    await queue.put_many(bodies)
    async with session.transaction() as tx:
        assert [message.body for message in await tx.take_many(queue, count)] == bodies[:count]
    async with session.transaction() as tx:
        assert [message.body for message in await tx.take_many(queue, 100)] == bodies[count : count + 100]


async def test_messages_that_are_rolled_back_are_redelivered_first_and_in_order(session: zq.QueueSession) -> None:
    queue = session.queue("jobs")
    bodies = [b"%d" % number for number in range(300)]
    await queue.put_many(bodies)
    for _ in range(3):
        async with session.transaction(autocommit=False) as tx:
            assert [message.body for message in await tx.take_many(queue, 200)] == bodies[:200]
            await tx.rollback(delay=0)
    async with session.transaction() as tx:
        assert [message.body for message in await tx.take_many(queue, 300)] == bodies


async def test_the_outcomes_of_the_last_transactions_are_remembered(
    session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.session.core.OUTCOMES_KEPT", 4)
    ids: list[str] = []
    for number in range(10):
        async with session.transaction() as tx:
            tx.put("jobs", b"%d" % number)
        ids.append(tx.id)
        assert {await session.outcome(remembered) for remembered in ids[-4:]} == {zq.Outcome.COMMITTED}
    assert await session.outcome(ids[0]) is zq.Outcome.UNKNOWN


async def test_a_take_of_many_counts_the_messages_that_its_transaction_holds_already(
    session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.session.transaction.EPHEMERAL_CAP", 500)
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(bundle=1))
    await jobs.put_many([b"%d" % each for each in range(12)])
    async with session.transaction() as tx:
        assert len(await tx.take_many(jobs, 6)) == 6
        with pytest.raises(zq.TransactionTooLargeError, match="would exceed the lock limit of one session"):
            await tx.take_many(jobs, 6)
    assert await jobs.size() == 6
