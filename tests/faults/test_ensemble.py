"""An ensemble of three: servers that are killed under load, and sessions with the maximum number of locks."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from tests.faults.account import Account
from tests.faults.processes import Workers
from tests.observer import observer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aiozkqueue.testing import EmbeddedEnsemble


@pytest.fixture
async def ensemble(zookeeper_ensemble: EmbeddedEnsemble) -> AsyncIterator[EmbeddedEnsemble]:
    """The ensemble, complete again after each test."""
    yield zookeeper_ensemble
    for node in zookeeper_ensemble.nodes:
        await asyncio.to_thread(node.start)


@pytest.fixture
async def account(ensemble: EmbeddedEnsemble, root: str) -> AsyncIterator[Account]:
    """The contents below the root on the ensemble."""
    async with observer(ensemble.hosts) as view:
        yield Account(view, root)


async def all_serve(ensemble: EmbeddedEnsemble) -> None:
    """Wait until every server answers: a server that the machine has delayed recovers, a dead one does not."""
    async with asyncio.timeout(60):
        while not all([await asyncio.to_thread(node.serves) for node in ensemble.nodes]):  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.05)


FILLED = 6_000


async def test_a_session_with_the_maximum_number_of_locks_does_not_crash_the_ensemble(
    ensemble: EmbeddedEnsemble, account: Account, root: str, tmp_path: Path
) -> None:
    async with zq.connect(ensemble.hosts, root=root, session_timeout=20) as session:
        jobs = session.queue("jobs")
        await jobs.configure(zq.QueueConfig(bundle=1))
        await jobs.put_many([b"x"] * FILLED)
        async with zq.connect(ensemble.hosts, root=root, session_timeout=20) as greedy:
            tx = await greedy.transaction(
                autocommit=False
            ).__aenter__()  # never settled: its locks end with the session
            with pytest.raises(zq.TransactionTooLargeError):
                await tx.take_many(greedy.queue("jobs"), 100_000)
            held = await fill_up(greedy, tx)
            assert 2_000 < held < FILLED
            assert len(await account.locks("jobs")) == held
            async with greedy.transaction(autocommit=False) as another, asyncio.timeout(30):
                assert await another.take(greedy.queue("jobs")) is None, "the session holds the maximum number of locks"
                assert await another.take(greedy.queue("jobs"), timeout=0.2) is None
        await all_serve(ensemble)
        await account.unlocked("jobs")

        async with Workers(ensemble.hosts, root, tmp_path / "journal") as workers:
            killed = await workers.start("hold_many", session_timeout=5)
            while len(await account.locks("jobs")) < held - 600:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.05)
            killed.send_signal(signal.SIGKILL)
            await account.unlocked("jobs", within=60)
        await all_serve(ensemble)
        assert await jobs.size() == FILLED
        await jobs.put(b"alive")
    print(f"\none session held {held} locks")  # noqa: T201 - reports the measurement


async def fill_up(session: zq.QueueSession, tx: zq.Transaction) -> int:
    """Take as many messages as the session may hold; return their number."""
    held = 0
    for step in (250, 10, 1):
        with suppress(zq.TransactionTooLargeError):
            while messages := await tx.take_many(session.queue("jobs"), step):
                held += len(messages)
    return held


async def test_each_commit_is_applied_once_when_the_leader_dies(
    ensemble: EmbeddedEnsemble, account: Account, root: str
) -> None:
    total = 600
    bodies = [b"%d" % number for number in range(total)]
    async with zq.connect(ensemble.hosts, root=root, session_timeout=20) as session:
        jobs = session.queue("jobs")
        await jobs.put_many(bodies)
        committed: list[bytes] = []
        failed: list[zq.QueueError] = []
        leader = await asyncio.to_thread(ensemble.leader)
        killed = asyncio.Event()

        async def work() -> None:
            while len(committed) < total:
                if len(committed) > total // 2:  # so that work is left when the leader is dead
                    await killed.wait()
                try:
                    async with session.transaction() as tx:
                        message = await tx.take(jobs, timeout=1)
                        if message is None:
                            continue
                        tx.put("results", message.body)
                # ConnectionLostError: an election took longer than the take.
                except (zq.NotCommittedError, zq.ConnectionLostError) as error:
                    failed.append(error)
                else:
                    committed.append(message.body)

        async with asyncio.TaskGroup() as tasks, asyncio.timeout(90):
            for _ in range(8):
                tasks.create_task(work())
            while len(committed) < total // 4:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.001)
            at = time.monotonic()
            await asyncio.to_thread(leader.kill)
            killed.set()
            when_killed = len(committed)
            while len(committed) < when_killed + 16:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.001)
            pause = time.monotonic() - at
        assert sorted(committed, key=int) == bodies
    assert sorted(await account.bodies("results"), key=int) == bodies
    assert await account.bodies("jobs") == []
    assert await account.locks("jobs") == []
    summary = f"leader killed after {when_killed} commits, {pause:.1f} s until they went on, {len(failed)} failed"
    print(f"\n{summary}")  # noqa: T201 - a figure for the reader of the output


async def test_a_session_survives_the_death_of_its_server(
    ensemble: EmbeddedEnsemble, account: Account, root: str
) -> None:
    async with zq.connect(ensemble.hosts, root=root, session_timeout=20) as session, session.transaction() as tx:
        client = session._runtime.zookeeper
        await asyncio.create_task(session.queue("jobs").exists())
        tx.put("jobs", b"filled")
        await tx.commit()
        async with session.transaction() as holding:
            assert await holding.take(session.queue("jobs"), timeout=30) is not None
            before = client.session_id
            peer = client._session.connection.peer  # type: ignore[attr-defined]
            (node,) = [node for node in ensemble.nodes if node.hosts == peer]
            at = time.monotonic()
            await asyncio.to_thread(node.kill)
            async with asyncio.timeout(60):
                assert await session.queue("jobs").size() == 1
            took = time.monotonic() - at
            assert client.session_id == before
            assert len(await account.locks("jobs")) == 1
        assert holding.outcome is zq.Outcome.COMMITTED
    assert await account.bodies("jobs") == []
    print(f"\nback on another server after {took:.2f} s")  # noqa: T201 - reports the measurement
