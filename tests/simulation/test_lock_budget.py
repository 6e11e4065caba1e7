"""A session that holds as many locks as a session may: its takers wait for its own locks, and for nothing else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster
from tests.simulation.test_known_configuration import play

if TYPE_CHECKING:
    from collections.abc import Callable

CAP = "aiozkqueue.queue.state.claim.EPHEMERAL_CAP"


@pytest.fixture(name="limit")
def make_limit(monkeypatch: pytest.MonkeyPatch) -> Callable[[zq.QueueSession, int], None]:
    """Return a function that lets a session hold this many locks of the queue `jobs` besides those that it has."""

    def limit(session: zq.QueueSession, locks: int) -> None:
        core = core_of(session)
        size = core.dispatcher(core.queue_state("jobs")).lock_size
        monkeypatch.setattr(CAP, core._budgets.of(core.zookeeper.generation).used + locks * size)

    return limit


async def warmed_up(session: zq.QueueSession, bundle: int, number: int) -> zq.Queue[bytes]:
    """Return a queue with messages, which the session has consumed before."""
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(bundle=bundle, policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))
    await jobs.put(b"first")
    async with session.transaction() as tx:
        assert await tx.take(jobs, timeout=5)
    for start in range(0, number, bundle):
        await jobs.put_many([b"%d" % each for each in range(start, start + bundle)])
    await asyncio.sleep(1)
    return jobs


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_taker_gets_a_message_as_soon_as_another_transaction_of_its_session_has_ended(
    limit: Callable[[zq.QueueSession, int], None], end: str
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        (session,) = sessions
        jobs = await warmed_up(session, 1, 5)
        limit(session, 2)
        async with session.transaction(autocommit=False) as first, session.transaction() as second:
            assert len(await first.take_many(jobs, 2, timeout=5)) == 2
            waiting = asyncio.ensure_future(second.take(jobs, timeout=600))
            await asyncio.sleep(60)
            assert not waiting.done()
            await (first.commit() if end == "commit" else first.rollback(delay=0))
            async with asyncio.timeout(1):
                assert await waiting

    play(program, 1)


def test_a_taker_gets_a_message_of_another_queue_as_soon_as_its_session_may_lock_it(
    limit: Callable[[zq.QueueSession, int], None],
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        (session,) = sessions
        jobs, more = await warmed_up(session, 1, 5), session.queue("more")
        await more.put(b"1")
        async with session.transaction() as tx:
            assert await tx.take(more, timeout=5)
        await more.put(b"2")
        await asyncio.sleep(1)
        limit(session, 2)
        async with session.transaction(autocommit=False) as first, session.transaction() as second:
            assert len(await first.take_many(jobs, 2, timeout=5)) == 2
            waiting = asyncio.ensure_future(second.take(more, timeout=600))
            await asyncio.sleep(60)
            assert not waiting.done()
            await first.commit()
            async with asyncio.timeout(1):
                assert await waiting

    play(program, 1)


def test_a_taker_that_does_not_wait_gets_nothing_if_its_session_may_hold_no_more_locks(
    limit: Callable[[zq.QueueSession, int], None],
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        (session,) = sessions
        jobs = await warmed_up(session, 1, 5)
        limit(session, 2)
        async with session.transaction(autocommit=False) as first, session.transaction() as second:
            assert len(await first.take_many(jobs, 2, timeout=5)) == 2
            async with asyncio.timeout(1):
                assert await second.take(jobs, timeout=0) is None
                assert await first.take(jobs, timeout=0) is None
            await first.rollback(delay=0)

    play(program, 1)


def test_a_take_of_many_returns_what_its_session_may_lock(limit: Callable[[zq.QueueSession, int], None]) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        (session,) = sessions
        jobs = await warmed_up(session, 1, 5)
        limit(session, 3)
        async with session.transaction() as first, session.transaction() as second:
            assert await first.take(jobs, timeout=5)
            async with asyncio.timeout(1):
                assert len(await second.take_many(jobs, 4, timeout=600)) == 2

    play(program, 1)


@pytest.mark.parametrize("bundle", [1, 4])
def test_a_session_that_may_hold_few_locks_takes_all_messages(
    limit: Callable[[zq.QueueSession, int], None], bundle: int
) -> None:
    """Each lock counts until it is gone, and no longer, whatever becomes of it."""

    async def program(sessions: list[zq.QueueSession]) -> None:
        session, other = sessions
        jobs, number = await warmed_up(session, bundle, 200), 200
        limit(session, 3)
        taken: list[bytes] = []

        async def take(consumer: zq.QueueSession, *, fail: bool) -> None:
            attempts = 0
            while len(taken) < number:
                attempts += 1
                async with consumer.transaction(autocommit=False) as tx:
                    messages = await tx.take_many(consumer.queue("jobs"), 3, timeout=2)
                    if fail and attempts % 3 == 0:
                        await tx.rollback(delay=0)
                    else:
                        await tx.commit()
                        taken.extend(message.body for message in messages)

        async with asyncio.timeout(600), asyncio.TaskGroup() as group:
            for consumer in (session, session, other):
                group.create_task(take(consumer, fail=True))
        assert sorted(taken) == sorted(b"%d" % each for each in range(number))
        assert await jobs.size() == 0

    play(program, 2)


def test_a_taker_at_the_limit_gets_a_message_in_the_next_zookeeper_session(
    limit: Callable[[zq.QueueSession, int], None],
) -> None:
    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect(name="full") as session:
            jobs = await warmed_up(session, 1, 5)
            limit(session, 2)
            async with session.transaction(autocommit=False) as first, session.transaction() as second:
                assert len(await first.take_many(jobs, 2, timeout=5)) == 2
                waiting = asyncio.ensure_future(second.take(jobs, timeout=600))
                await asyncio.sleep(60)
                assert not waiting.done()
                cluster.expire("full")
                async with asyncio.timeout(30):
                    assert await waiting
                with pytest.raises(zq.NotCommittedError):
                    await first.commit()

    run_virtual(main)


def test_a_take_of_many_at_the_limit_returns_the_messages_at_hand(
    limit: Callable[[zq.QueueSession, int], None],
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        (session,) = sessions
        jobs = await warmed_up(session, 4, 12)
        limit(session, 2)
        async with session.transaction() as first, session.transaction() as second:
            assert len(await first.take_many(jobs, 5, timeout=5)) == 5
            async with asyncio.timeout(1):
                assert len(await second.take_many(jobs, 4, timeout=600)) == 3

    play(program, 1)


def test_one_of_two_takers_that_do_not_wait_gets_the_only_message_that_their_session_may_lock(
    limit: Callable[[zq.QueueSession, int], None],
) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        (session,) = sessions
        jobs = await warmed_up(session, 1, 5)
        limit(session, 1)
        async with session.transaction() as first, session.transaction() as second:
            taken = await asyncio.gather(first.take(jobs, timeout=0), second.take(jobs, timeout=0))
            assert [message is None for message in taken].count(False) == 1

    play(program, 1)


def test_bundles_that_had_to_be_dissolved_do_not_use_up_the_locks(
    limit: Callable[[zq.QueueSession, int], None],
) -> None:
    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect() as session, cluster.connect(name="dying") as other:
            jobs = await warmed_up(session, 4, 0)
            limit(session, 3)
            for _ in range(5):
                await jobs.put_many([b"1", b"2", b"3", b"4"])
                async with other.transaction() as tx:
                    assert await tx.take(other.queue("jobs"), timeout=30)
                dying = await other.transaction(autocommit=False).__aenter__()
                assert len(await dying.take_many(other.queue("jobs"), 3, timeout=30)) == 3
                cluster.expire("dying")
                taken = 0
                async with asyncio.timeout(100):
                    while taken < 3:
                        async with session.transaction() as tx:
                            taken += len(await tx.take_many(jobs, 3, timeout=50))
                with pytest.raises(zq.NotCommittedError):
                    await dying.commit()

    run_virtual(main)
