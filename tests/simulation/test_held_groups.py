"""Groups whose lock a session keeps from one message to the next: it must end for pauses, and for other consumers."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator import Cluster, Delays, Ensemble
from tests.simulation.test_known_configuration import play

#: Seconds of a network message between a client and the server: a search takes longer than a kept lock waits.
WAY = 0.05


def _way() -> float:
    return WAY


async def fill(session: zq.QueueSession, number: int) -> zq.Queue[bytes]:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(ordered=True))
    for each in range(number):
        await jobs.put(b"%d" % each)
    return jobs


def test_other_sessions_get_the_next_message_if_the_taker_that_waits_for_it_gives_up() -> None:
    """The taker leaves while its session waits for the answer to a search, and delivers nothing in the meantime."""

    async def main(commit_after: float, patience: float) -> bool:
        cluster = Cluster(Ensemble(Random(1), delays=Delays(_way, _way, _way, _way)), 1)
        async with cluster.connect() as session, cluster.connect() as other:
            jobs = await fill(session, 2)

            async def wait() -> None:
                async with session.transaction(autocommit=False) as tx:
                    await tx.take(jobs, timeout=patience)
                    await tx.rollback(delay=0)

            async with session.transaction(autocommit=False) as tx:
                assert await tx.take(jobs, timeout=5) is not None
                await asyncio.sleep(2)
                waiting = asyncio.create_task(wait())
                await asyncio.sleep(commit_after)
                await tx.commit()
            await waiting
            async with other.transaction() as tx:
                return await tx.take(other.queue("jobs"), timeout=30) is not None

    for commit_after in (0, 0.08, 0.24):
        for longer in (0.17, 0.21):
            assert run_virtual(partial(main, commit_after, commit_after + longer)), (commit_after, longer)


def test_a_session_that_holds_a_group_notices_a_pause_by_another_session() -> None:
    """It delivers the messages that it has read ahead, and no more."""

    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, consumer = sessions
        jobs, handled = await fill(operator, 60), list[bytes]()

        async def handle(delivery: zq.Delivery[bytes]) -> None:
            handled.append(delivery.body)
            await asyncio.sleep(0.1)

        async with consumer.listener(consumer.queue("jobs"), handle):
            await asyncio.sleep(1)
            await jobs.configure(zq.QueueConfig(paused=True))
            before = len(handled)
            await asyncio.sleep(60)
            assert 0 < before < len(handled) <= before + 16

    play(program, 2)


def test_a_consumer_that_joins_gets_its_share_of_the_groups_that_another_one_holds() -> None:
    """Each group has waiting messages until the end, so its lock would stay in place."""

    async def program(sessions: list[zq.QueueSession]) -> None:
        jobs, shares, done = sessions[0].queue("jobs"), [0, 0], asyncio.Event()
        for number in range(320):
            await jobs.put(b"", group="abcdefgh"[number % 8])

        def listener(number: int) -> zq.Listener[bytes]:
            async def handle(_: zq.Delivery[bytes]) -> None:
                await asyncio.sleep(0.1)
                shares[number] += 1
                if sum(shares) == 320:
                    done.set()

            return sessions[number].listener(sessions[number].queue("jobs"), handle, concurrency=8)

        async with listener(0):
            await asyncio.sleep(0.5)
            async with listener(1):
                await done.wait()
        assert min(shares) > 80, shares

    play(program, 2)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("commits", [True, False])
def test_a_taker_gets_the_next_message_when_its_session_ends_the_last_lock_from_before_ordered_was_changed(
    *, ordered: bool, commits: bool
) -> None:
    """Until then, the taker has searched the queue, and has found that nothing may be claimed yet."""

    async def program(sessions: list[zq.QueueSession]) -> None:
        operator, consumer = sessions
        theirs, jobs = operator.queue("jobs"), consumer.queue("jobs")
        await theirs.configure(zq.QueueConfig(ordered=not ordered, bundle=1))
        await theirs.put(b"1")
        await theirs.put(b"2")

        async def take() -> bytes | None:
            async with consumer.transaction() as tx:
                message = await tx.take(jobs, timeout=5)
                return None if message is None else message.body

        async with consumer.transaction(autocommit=False) as held:
            assert await held.take(jobs, timeout=5) is not None
            await theirs.configure(zq.QueueConfig(ordered=ordered))
            taking = asyncio.create_task(take())
            await asyncio.sleep(1)
            assert not taking.done()
            await (held.commit() if commits else held.rollback(delay=0))
            assert await taking == (b"2" if commits else b"1")

    play(program, 2)
