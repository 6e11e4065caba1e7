"""Processes that are killed, or stopped for longer than their session timeout."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from tests.faults.processes import Workers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.faults.account import Account

TICK = 0.1


@pytest.fixture
async def workers(quick: str, root: str, tmp_path: Path) -> AsyncIterator[Workers]:
    async with Workers(quick, root, tmp_path / "journal") as started:
        yield started


@pytest.mark.parametrize("session_timeout", [0.5, 2.0])
async def test_an_idle_consumer_gets_the_message_of_a_killed_holder_without_other_traffic(
    quick: str, root: str, account: Account, workers: Workers, session_timeout: float
) -> None:
    bound, times = session_timeout + 2 * TICK + 1, list[float]()
    async with zq.connect(quick, root=root, session_timeout=20) as session:
        for attempt in range(1, 6):
            await session.queue("jobs").put(b"a")
            holder = await workers.start("hold", session_timeout=session_timeout)
            await workers.wait_for_lines(attempt)
            async with session.transaction() as tx:
                taking = asyncio.ensure_future(tx.take(session.queue("jobs"), timeout=None))
                await asyncio.sleep(0.4)  # long enough to be idle and have its watches set
                early = taking.done()
                holder.send_signal(signal.SIGKILL)
                killed = time.monotonic()
                async with asyncio.timeout(60):
                    assert await taking is not None
                if not early:
                    times.append(time.monotonic() - killed)
            # Repeat if the machine stalled, so that the holder lost its session or the taker was late.
            if times and (times[-1] <= bound or len(times) == 3):
                break
    assert times, "the message was delivered each time while its holder was alive"
    summary = f"session timeout {session_timeout} s: taken over after {times[-1]:.2f} s, bound {bound:.2f} s"
    print(f"\n{summary}")  # noqa: T201 - a figure for the reader of the output
    assert times[-1] <= bound, times
    assert await account.bodies("jobs") == []


async def test_a_process_stopped_for_longer_than_its_session_commits_nothing(
    quick: str, root: str, account: Account, workers: Workers
) -> None:
    wait = workers.journal.with_suffix(".wait")
    await asyncio.to_thread(wait.touch)
    async with zq.connect(quick, root=root, session_timeout=20) as session:
        await session.queue("jobs").put(b"a")
        stopped = await workers.start("commit_late", session_timeout=3)
        await workers.wait_for_lines(1)
        stopped.send_signal(signal.SIGSTOP)
        async with session.transaction() as tx:
            assert await tx.take(session.queue("jobs"), timeout=60) is not None
            tx.put("results", b"from the other")
        await asyncio.to_thread(wait.unlink)
        stopped.send_signal(signal.SIGCONT)
        assert await workers.wait_for_lines(2) == ["holds", "SessionExpiredError"]
    assert await account.bodies("jobs") == []
    assert await account.bodies("results") == [b"from the other"]
    assert await account.locks("jobs") == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("policy", "attempt"),
    [(zq.AtLeastOnce(backoff=zq.Fixed(0)), 1), (zq.ConsumeTimes(5, backoff=zq.Fixed(0)), 3)],
    ids=["AtLeastOnce", "ConsumeTimes(5)"],
)
async def test_two_kills_count_as_attempts_only_if_the_policy_counts_deliveries(
    quick: str, root: str, workers: Workers, policy: zq.Policy, attempt: int
) -> None:
    async with zq.connect(quick, root=root, session_timeout=20) as session:
        jobs = session.queue("jobs")
        await jobs.configure(zq.QueueConfig(policy=policy))
        message_id = await jobs.put(b"a")
        for kill in (1, 2):
            holder = await workers.start("hold", session_timeout=2)
            assert await workers.wait_for_lines(kill) == [f"holds {message_id}"] * kill
            holder.send_signal(signal.SIGKILL)
        async with session.transaction() as tx:
            message = await tx.take(jobs, timeout=60)
            assert message is not None
            state = await jobs.state(message_id)
            assert (message.id, message.attempt) == (message_id, attempt)
            assert state.attempts == (attempt if policy.limit else 0), "with a limit, this delivery counts too"


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("policy", "most"),
    [(zq.ConsumeTimes(3, backoff=zq.Fixed(0)), 3), (zq.ConsumeOnce(), 1)],
    ids=["ConsumeTimes(3)", "ConsumeOnce"],
)
async def test_random_kills_do_not_deliver_a_message_more_often_than_its_policy_allows(
    quick: str, root: str, account: Account, workers: Workers, policy: zq.Policy, most: int
) -> None:
    """Two consumers at a time never finish a message, and are killed while they claim, record, deliver and hold."""
    total = 2
    chance = random.Random(7)
    async with zq.connect(quick, root=root, session_timeout=20) as session:
        jobs = session.queue("jobs", policy=policy)
        await jobs.put_many([b"m%d" % number for number in range(total)])
        deadline = time.monotonic() + 150
        while await jobs.size() and time.monotonic() < deadline:
            batch = [await workers.start("consume", session_timeout=0.4) for _ in range(2)]
            before = len(await asyncio.to_thread(workers.lines))
            if chance.random() < 0.3:  # sometimes before or during the first delivery
                await asyncio.sleep(chance.uniform(0.2, 0.6))
            else:
                while len(await asyncio.to_thread(workers.lines)) == before and await jobs.size():  # noqa: ASYNC110 - no event reports it
                    await asyncio.sleep(0.005)
                await asyncio.sleep(chance.uniform(0, 0.06))
            for worker in batch:
                worker.send_signal(signal.SIGKILL)
        assert await jobs.size() == 0
        dead = {letter.body: letter for letter in await jobs.dead_letters.peek(total)}
    lines = await asyncio.to_thread(workers.lines)
    delivered = Counter(line.split()[0] for line in lines)
    print(f"\n{len(lines)} deliveries, {len(dead)} dead letters: {dict(delivered)}")  # noqa: T201 - reports the counts
    assert delivered
    assert max(delivered.values()) <= most
    for line in lines:
        assert int(line.split()[1]) <= most
    assert dead, "no message used up its attempts"
    assert all(f"delivered {most} of {most} times" in letter.reason for letter in dead.values())
    assert await account.bodies("jobs") == []
    assert await account.attempts("jobs") == []
