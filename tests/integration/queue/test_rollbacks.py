"""The guarantees of ZkQueue for rollbacks: in each failure all taken messages are released, and no put is stored."""

from __future__ import annotations

import asyncio
from types import NoneType
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import UncommittedWarning
from aiozkqueue.testing import Direction, Opcode, TestClock
from tests.integration.queue.conftest import Locks, Opener, no_locks, take_one

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing import ZooKeeperProxy
    from tests.observer import Observer

    Expire = Callable[[zq.QueueSession], Awaitable[None]]


class Failures:
    """The failures that can happen during a transaction of ``worker``."""

    def __init__(
        self, session: zq.QueueSession, worker: zq.QueueSession, proxy: ZooKeeperProxy, expire: Expire
    ) -> None:
        self.worker = worker
        self._session = session
        self._proxy = proxy
        self._expire = expire

    async def the_handler_fails(self, _: zq.Transaction) -> None:
        raise KeyError

    async def the_connection_is_lost(self, _: zq.Transaction) -> None:
        self._proxy.reset_connections()

    async def the_commit_is_refused(self, tx: zq.Transaction) -> None:
        await self._session.queue("jobs").admin.release_claims()
        with pytest.raises(zq.ClaimLostError):
            await tx.commit()

    async def the_session_expires(self, _: zq.Transaction) -> None:
        await self._expire(self.worker)

    async def the_task_is_cancelled(self, _: zq.Transaction) -> None:
        cancel_this_task()
        await asyncio.sleep(1)

    async def the_commit_is_cancelled(self, tx: zq.Transaction) -> None:
        asyncio.get_running_loop().call_soon(cancel_this_task, asyncio.current_task())
        self._proxy.lose_before(Opcode.MULTI)
        await tx.commit()


def cancel_this_task(task: asyncio.Task[None] | None = None) -> None:
    task = task or asyncio.current_task()
    assert task is not None
    task.cancel()


@pytest.fixture
async def failures(
    session: zq.QueueSession, open_session: Opener, zookeeper_proxy: ZooKeeperProxy, expire: Expire
) -> Failures:
    return Failures(session, await open_session(zookeeper_proxy.hosts), zookeeper_proxy, expire)


@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        (Failures.the_handler_fails, KeyError),
        (Failures.the_connection_is_lost, None),
        (Failures.the_commit_is_refused, None),
        (Failures.the_session_expires, None),
        (Failures.the_task_is_cancelled, asyncio.CancelledError),
        (Failures.the_commit_is_cancelled, asyncio.CancelledError),
    ],
    ids=lambda value: value.__name__ if value and not isinstance(value, type) else "",
)
async def test_rollback_always_succeeds_removes_all_locks_and_cancels_all_puts(
    failure: Callable[[Failures, zq.Transaction], Awaitable[None]],
    raised: type[BaseException] | None,
    failures: Failures,
    session: zq.QueueSession,
    locks: Locks,
) -> None:
    jobs, results = session.queue("jobs"), session.queue("results")
    await jobs.put_many([b"1", b"2", b"3"])
    done: list[zq.Transaction] = []

    async def work() -> None:
        async with failures.worker.transaction(autocommit=False) as tx:
            done.append(tx)
            assert len(await tx.take_many(failures.worker.queue("jobs"), 2)) == 2
            tx.put("results", b"never")
            try:
                await failure(failures, tx)
            finally:
                if tx.outcome is not zq.Outcome.COMMITTED:
                    await tx.rollback(delay=0)
                    assert await locks() == []

    (working,) = (await asyncio.wait([asyncio.create_task(work())], timeout=60))[0]
    assert (
        working.cancelled() if raised is asyncio.CancelledError else type(working.exception()) is (raised or NoneType)
    )
    # A commit that had been sent when its caller was cancelled may be applied, but only as a whole.
    left, put = (1, 1) if done[0].outcome is zq.Outcome.COMMITTED else (3, 0)
    assert (await jobs.size(), await results.size()) == (left, put)
    assert await locks() == []
    for _ in range(left):  # they are available to every client at once
        await take_one(session)


async def test_a_rollback_with_a_delay_leaves_a_timed_lock_that_is_removed_when_it_ends(
    open_session: Opener, locks: Locks, server_view: Observer, queue_root: str
) -> None:
    clock = TestClock()
    session = await open_session(clock=clock)
    jobs = session.queue("jobs")
    await jobs.put(b"1")
    async with session.transaction(autocommit=False) as tx:
        message = await tx.take(jobs)
        assert message is not None
        await tx.rollback(delay=600)
    assert await locks() == [f"lock-{message.id}"]
    assert await server_view.ephemerals(f"{queue_root}/jobs/locks") == {}  # it outlives the session that created it
    assert (await jobs.stats()).delayed == 1
    async with session.transaction() as tx:
        assert await tx.take(jobs) is None
        clock.advance(600)
        redelivered = await tx.take(jobs, timeout=30)
        assert redelivered is not None
        assert (redelivered.id, redelivered.attempt) == (message.id, 2)
    assert await locks() == await server_view.children(f"{queue_root}/jobs/due") == []


async def test_leaving_the_block_of_a_transaction_rolls_it_back_unless_committed(
    session: zq.QueueSession, locks: Locks
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1")
    with pytest.warns(UncommittedWarning, match="without a commit"):
        async with session.transaction(autocommit=False) as tx:
            await tx.take(jobs)
            tx.put("results", b"never")
    assert tx.outcome is zq.Outcome.ROLLED_BACK
    assert await locks() == []
    assert (await jobs.size(), await session.queue("results").size()) == (1, 0)


async def test_rollback_undoes_a_transaction_cancelled_at_any_moment(session: zq.QueueSession, locks: Locks) -> None:
    # In Java, an interruption at these moments left the transaction inconsistent.
    jobs = session.queue("jobs")
    await jobs.put_many([b"%d" % number for number in range(4)])
    for moment in range(12):
        tx = await session.transaction(autocommit=False).__aenter__()

        async def work(tx: zq.Transaction = tx) -> None:
            await tx.take(jobs)
            await tx.take(jobs)
            tx.put("results", b"never")
            await asyncio.sleep(1)

        working = asyncio.create_task(work())
        for _ in range(moment):
            await asyncio.sleep(0)
        working.cancel()
        await asyncio.wait([working])
        await tx.rollback(delay=0)
        await no_locks(locks)
    assert (await jobs.size(), await session.queue("results").size()) == (4, 0)


async def test_rollback_without_a_connection_ends_within_the_session_timeout_and_leaves_no_lock(
    open_session: Opener, session: zq.QueueSession, zookeeper_proxy: ZooKeeperProxy, locks: Locks
) -> None:
    worker = await open_session(zookeeper_proxy.hosts, session_timeout=3)
    await session.queue("jobs").put(b"1")
    async with worker.transaction(autocommit=False) as tx:
        await tx.take(worker.queue("jobs"))
        zookeeper_proxy.refuse()
        zookeeper_proxy.reset_connections()
        rolling = asyncio.create_task(tx.rollback(delay=0))
        await no_locks(locks)  # the server ends the session, since the client cannot connect
        await zookeeper_proxy.listen()
        await asyncio.wait_for(rolling, 30)
    assert (await take_one(session)).value == b"1"


async def test_a_rollback_larger_than_one_request_leaves_no_lock_and_releases_every_message(
    session: zq.QueueSession, other: zq.QueueSession, locks: Locks
) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))
    for _ in range(4):
        await jobs.put_many([bytes(20_000) for _ in range(30)])
    async with session.transaction(autocommit=False) as tx:
        assert len(await tx.take_many(jobs, 120)) == 120
        tx.put("results", b"never")
        await tx.rollback()
        assert await locks() == []
    async with other.transaction() as tx:
        messages = await tx.take_many(other.queue("jobs"), 40, timeout=30)
        assert len(messages) == 40
        assert {message.attempt for message in messages} == {2}


async def test_a_rollback_while_no_server_answers_returns_after_one_session_timeout(
    open_session: Opener, session: zq.QueueSession, zookeeper_proxy: ZooKeeperProxy, locks: Locks
) -> None:
    worker = await open_session(zookeeper_proxy.hosts, session_timeout=3)
    await session.queue("jobs").put(b"1")
    async with worker.transaction(autocommit=False) as tx:
        await tx.take(worker.queue("jobs"))
        zookeeper_proxy.refuse()
        zookeeper_proxy.reset_connections()
        async with asyncio.timeout(30):  # the proxy refuses connections until the block ends
            await tx.rollback(delay=0)
        assert tx.outcome is zq.Outcome.ROLLED_BACK
        await no_locks(locks)
        assert (await take_one(session)).value == b"1"
        await zookeeper_proxy.listen()


async def test_a_rollback_after_an_unanswered_commit_raises_after_one_session_timeout(
    open_session: Opener, zookeeper_proxy: ZooKeeperProxy, locks: Locks
) -> None:
    worker = await open_session(zookeeper_proxy.hosts, session_timeout=3)
    await worker.queue("jobs").put(b"1")  # creates its commit slot, so that the commit is sent at once
    tx = await worker.transaction(autocommit=False).__aenter__()
    await tx.take(worker.queue("jobs"))
    zookeeper_proxy.stall(Direction.TO_CLIENT)
    with pytest.raises(zq.OutcomeUnknownError):
        await tx.commit(timeout=0.1)
    async with asyncio.timeout(30):
        with pytest.raises(zq.OutcomeUnknownError, match="in progress"):
            await tx.rollback()
    zookeeper_proxy.heal()
    await no_locks(locks)
    assert await worker.outcome(tx.id) in {zq.Outcome.COMMITTED, zq.Outcome.ROLLED_BACK}


async def test_a_group_larger_than_one_request_is_released_in_its_order(
    session: zq.QueueSession, other: zq.QueueSession, locks: Locks
) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))
    identities: list[str] = []
    for _ in range(4):
        identities += await jobs.put_many([bytes(20_000) for _ in range(30)], group="g")
    async with session.transaction(autocommit=False) as tx:
        assert len(await tx.take_many(jobs, 120)) == 120
        await tx.rollback()
        assert await locks() == []
    async with other.transaction() as tx:
        messages = await tx.take_many(other.queue("jobs"), 40, timeout=30)
        assert [message.id for message in messages] == identities[: len(messages)]
        assert messages[0].attempt == 2
