"""State and history: the state of a message by its id, and the records of ended messages."""

from __future__ import annotations

import asyncio
import os
import socket
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.admin import HistoryRecord, Process
from tests.integration.queue.conftest import eventually, take_one

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.queue.conftest import Opener
    from tests.observer import Observer

ONCE = zq.ConsumeTimes(1)


async def records(queue: zq.Queue[bytes]) -> list[HistoryRecord]:
    return [record async for record in queue.history()]


@pytest.fixture
async def jobs(session: zq.QueueSession) -> zq.Queue[bytes]:
    """A queue that keeps a history."""
    queue = session.queue("jobs")
    await queue.configure(zq.QueueConfig(history=zq.History(lifetime=timedelta(days=7))))
    return queue


async def test_a_message_is_shown_as_waiting_then_claimed_then_finished(
    session: zq.QueueSession, other: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    job = await jobs.put(b"one")
    waiting = await jobs.state(job)
    assert waiting.status is zq.Status.WAITING
    assert waiting.put_by == Process(client=job[:12], host=socket.gethostname(), pid=os.getpid())
    assert waiting.put_at is not None
    async with other.transaction() as tx:
        assert await tx.take(other.queue("jobs"), timeout=10)
        claimed = await jobs.state(job)
        assert claimed.status is zq.Status.IN_FLIGHT
        assert claimed.claimed_by is not None
        assert claimed.claimed_by.pid == os.getpid()
        assert claimed.claimed_at is not None
        assert claimed.claimed_at >= waiting.put_at
    finished = await session.queue("jobs").state(job)
    assert finished.status is zq.Status.FINISHED
    assert (await jobs.stats()).records == 1
    assert finished.claimed_by == claimed.claimed_by
    assert finished.put_by == waiting.put_by
    assert finished.claimed_at == claimed.claimed_at
    assert finished.ended_at is not None
    assert finished.ended_at >= claimed.claimed_at


async def test_a_failed_message_is_delayed_until_its_retry_and_dead_after_its_last_attempt(
    session: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    await jobs.configure(zq.QueueConfig(policy=zq.ConsumeTimes(2, backoff=zq.Fixed(120))))
    job = await jobs.put(b"one")

    async def fail() -> None:
        async with session.queue("jobs").consume() as deliveries:
            async for delivery in deliveries:
                async with delivery:
                    msg = "the printer is on fire"
                    raise RuntimeError(msg)

    with pytest.raises(RuntimeError):
        await fail()
    delayed = await jobs.state(job)
    assert (delayed.status, delayed.attempts) == (zq.Status.DELAYED, 1)
    assert delayed.error is not None
    assert "the printer is on fire" in delayed.error
    assert delayed.due is not None
    assert timedelta(0) < delayed.due - datetime.now(UTC) < timedelta(minutes=3)
    await jobs.admin.release_claims()
    with pytest.raises(RuntimeError):
        await fail()
    dead = await jobs.state(job)
    assert (dead.status, dead.attempts) == (zq.Status.DEAD, 2)
    assert "the printer is on fire" in dead.reason
    (record,) = await records(jobs)
    assert (record.id, record.outcome, record.attempts) == (job, zq.End.DEAD, 2)
    await jobs.dead_letters.redrive()
    assert (await jobs.state(job)).status is zq.Status.WAITING


async def test_history_records_the_end_of_each_message_once_and_in_order(
    session: zq.QueueSession, jobs: zq.Queue[bytes]
) -> None:
    finished = await jobs.put(b"one", key="k")
    await take_one(session)
    await asyncio.sleep(0.01)  # times are stored to the millisecond, and the three must differ
    rejected = await jobs.put(b"two")
    async with session.transaction() as tx:
        message = await tx.take(jobs, timeout=30)
        assert message is not None
        tx.reject(message, "not a number")
    await asyncio.sleep(0.01)
    removed = await jobs.put(b"three")
    await jobs.purge()
    ended = await records(jobs)
    assert [(record.id, record.outcome) for record in ended] == [
        (finished, zq.End.FINISHED),
        (rejected, zq.End.DEAD),
        (removed, zq.End.REMOVED),
    ]
    assert ended[0].key == "k"
    assert ended[1].reason == "not a number"
    assert ended[0].host == socket.gethostname()
    assert all(record.put_at <= record.ended_at for record in ended)
    assert [record.id async for record in jobs.history(since=ended[1].ended_at, until=ended[2].ended_at)] == [rejected]
    assert [record.id async for record in jobs.history(limit=2)] == [finished, rejected]


async def test_a_rollback_leaves_no_history_record(session: zq.QueueSession, jobs: zq.Queue[bytes]) -> None:
    await jobs.put(b"one")
    async with session.transaction(autocommit=False) as tx:
        await tx.take(jobs, timeout=30)
        await tx.rollback(delay=0)
    assert await records(jobs) == []
    assert (await take_one(session)).body == b"one"
    assert len(await records(jobs)) == 1


async def test_history_records_a_dropped_message_as_failed(session: zq.QueueSession, jobs: zq.Queue[bytes]) -> None:
    await jobs.configure(zq.QueueConfig(policy=zq.ConsumeTimes(1, exhausted="drop")))
    job = await jobs.put(b"one")
    async with session.transaction(autocommit=False) as tx:
        await tx.take(jobs, timeout=30)
        await tx.rollback()
    (record,) = await records(jobs)
    assert (record.id, record.outcome) == (job, zq.End.FAILED)
    assert (await jobs.state(job)).status is zq.Status.FAILED


async def test_history_keeps_payloads_if_configured(session: zq.QueueSession) -> None:
    queue = session.queue("jobs")
    await queue.configure(zq.QueueConfig(history=zq.History(payload=True)))
    await queue.put(b"\xf5zq1 payload", headers={"trace": "t1"}, key="k")
    await take_one(session)
    (record,) = await records(queue)
    assert (record.payload, dict(record.headers), record.key) == (b"\xf5zq1 payload", {"trace": "t1"}, "k")


async def test_a_queue_without_history_writes_no_records(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    job = await session.queue("jobs").put(b"one")
    await take_one(session)
    assert not await server_view.exists(f"{queue_root}/jobs/history")
    assert (await session.queue("jobs").state(job)).status is zq.Status.UNKNOWN


async def test_a_running_consumer_follows_a_change_of_the_history_option(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    queue = session.queue("jobs")
    taken: list[str] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        taken.append(delivery.id)

    async def done(job: str) -> bool:
        return job in taken and await queue.size() == 0

    async with other.listener(other.queue("jobs"), handler):
        for history, kept in ((None, 0), (zq.History(), 1), (False, 1)):
            await queue.configure(zq.QueueConfig(history=history))  # type: ignore[arg-type]  # each has one of the three types
            job = await queue.put(b"one")
            await eventually(lambda job=job: done(job), 30)  # type: ignore[misc]
            assert len(await records(queue)) == kept


async def test_an_acknowledged_lease_is_finished(jobs: zq.Queue[bytes]) -> None:
    job = await jobs.put(b"one")
    (lease,) = await jobs.leases.take()
    assert (await jobs.state(job)).status is zq.Status.DELAYED
    await jobs.leases.acknowledge([lease.token])
    (record,) = await records(jobs)
    assert (record.id, record.outcome, record.attempts) == (job, zq.End.FINISHED, 1)


async def test_history_outlives_the_sessions_that_wrote_it(
    open_session: Opener, jobs: zq.Queue[bytes], expire: Callable[[zq.QueueSession], Awaitable[None]]
) -> None:
    writer = await open_session()
    job = await writer.queue("jobs").put(b"one")
    await take_one(writer)
    await expire(writer)
    assert [record.id for record in await records(jobs)] == [job]


@pytest.mark.parametrize(
    "bad",
    [
        lambda: zq.History(lifetime=0),
        lambda: zq.History(lifetime=-1),
        lambda: zq.History(lifetime=float("nan")),
        lambda: zq.History(most=0),
        lambda: zq.QueueConfig(history=True),  # type: ignore[arg-type]  # the refused type
        lambda: zq.QueueConfig(clean_every=0),
    ],
)
def test_invalid_history_options_are_refused_before_anything_is_sent(bad: Callable[[], object]) -> None:
    with pytest.raises(zq.InvalidOptionError):
        bad()


async def test_times_without_a_zone_are_refused(jobs: zq.Queue[bytes]) -> None:
    with pytest.raises(zq.InvalidOptionError, match="aware"):
        await anext(jobs.history(since=datetime(2026, 3, 1)))  # noqa: DTZ001 - the refused value
