"""Cancelling a message in flight: its handler is cancelled, wherever it runs, and it is never delivered again."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from tests.integration.queue.conftest import eventually, no_locks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.listeners import Batch
    from tests.integration.queue.conftest import Locks

    Expire = Callable[[zq.QueueSession], Awaitable[None]]

pytestmark = pytest.mark.timeout(90)


class Slow:
    """A handler that runs until it is cancelled, for some messages."""

    def __init__(self, *slow: bytes) -> None:
        self.slow = set(slow)
        self.begun: list[bytes] = []
        self.cancelled: list[bytes] = []
        self.finished: list[bytes] = []

    async def __call__(self, delivery: zq.Delivery[bytes]) -> None:
        self.begun.append(delivery.value)
        delivery.put("done", delivery.value)
        if delivery.value in self.slow:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                self.cancelled.append(delivery.value)
                raise
        self.finished.append(delivery.value)

    async def until(self, *bodies: bytes) -> None:
        async def begun() -> bool:
            return set(bodies) <= set(self.begun)

        await eventually(begun)


async def ended(queue: zq.Queue[bytes], message_id: str) -> zq.Status:
    return (await queue.state(message_id)).status


@pytest.mark.parametrize(
    "policy", [zq.AtLeastOnce(), zq.ConsumeTimes(5)], ids=["attempts not counted", "attempts counted"]
)
async def test_a_running_handler_is_cancelled_and_its_message_never_redelivered(
    session: zq.QueueSession, other: zq.QueueSession, locks: Locks, caplog: pytest.LogCaptureFixture, policy: zq.Policy
) -> None:
    jobs, handler = session.queue("jobs", policy=policy), Slow(b"slow")
    await jobs.configure(zq.QueueConfig(history=zq.History()))
    message = await jobs.put(b"slow", key="k", unique=True)
    await jobs.put(b"quick")
    with caplog.at_level(logging.INFO):
        async with session.listener(jobs, handler, concurrency=2):
            await handler.until(b"slow", b"quick")
            other_jobs = other.queue("jobs")
            assert await other_jobs.cancel(id=message) is zq.Alteration.HELD
            assert await other_jobs.cancel(id=message, running=True) is zq.Alteration.DONE

            async def cancelled() -> bool:
                return handler.cancelled == [b"slow"]

            await eventually(cancelled)
            await jobs.put(b"next", key="k", unique=True)  # the key is free
            await handler.until(b"next")
            await no_locks(locks)
    assert handler.begun.count(b"slow") == 1
    assert await ended(jobs, message) is zq.Status.CANCELLED
    records = [record async for record in jobs.history() if record.id == message]
    assert [record.outcome for record in records] == [zq.End.CANCELLED]
    assert records[0].claimed is not None
    assert await jobs.size() == 0
    assert sorted(message.value for message in await session.queue("done").peek()) == [b"next", b"quick"]
    assert f"message {message} was cancelled while its handler ran; the handler is cancelled" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_message_in_flight_is_cancelled_and_the_others_of_its_bundle_are_handled(
    session: zq.QueueSession, other: zq.QueueSession, locks: Locks
) -> None:
    jobs, handler = session.queue("jobs"), Slow(b"7")
    await jobs.configure(zq.QueueConfig(bundle=64, history=zq.History()))
    ids = await jobs.put_many([b"%d" % number for number in range(40)])
    async with session.listener(jobs, handler, concurrency=40):
        await handler.until(b"7")
        assert await other.queue("jobs").cancel(id=ids[7], running=True) is zq.Alteration.DONE

        async def over() -> bool:
            return handler.cancelled == [b"7"] and await jobs.size() == 0

        await eventually(over)
        await no_locks(locks)
    assert await ended(jobs, ids[7]) is zq.Status.CANCELLED
    assert handler.begun.count(b"7") == 1
    done = sorted(int(message.value) for message in await session.queue("done").peek(100))
    assert done == [number for number in range(40) if number != 7]


async def test_the_batch_of_a_cancelled_message_is_cancelled_and_the_others_are_redelivered(
    session: zq.QueueSession, other: zq.QueueSession, locks: Locks
) -> None:
    jobs, batches = session.queue("jobs"), list[list[bytes]]()

    async def store(batch: Batch[bytes]) -> None:
        batches.append([message.value for message in batch])
        if len(batches) == 1:
            await asyncio.sleep(3600)

    ids = await jobs.put_many([b"1", b"2", b"3"])
    async with session.listener(jobs, store, batch=3, batch_wait=0.5):

        async def begun() -> bool:
            return bool(batches)

        await eventually(begun)
        assert await other.queue("jobs").cancel(id=ids[1], running=True)

        async def over() -> bool:
            return await jobs.size() == 0

        await eventually(over)
        await no_locks(locks)
    assert batches[0] == [b"1", b"2", b"3"]
    assert sorted(body for batch in batches[1:] for body in batch) == [b"1", b"3"]


async def test_a_message_that_is_cancelled_while_its_batch_is_collected_is_not_handled(
    session: zq.QueueSession, other: zq.QueueSession, locks: Locks
) -> None:
    jobs, batches = session.queue("jobs"), list[list[bytes]]()

    async def store(batch: Batch[bytes]) -> None:
        batches.append([message.value for message in batch])

    async with session.listener(jobs, store, batch=2, batch_wait=3600):
        message = await jobs.put(b"1")

        async def claimed() -> bool:
            return bool(await locks())

        await eventually(claimed)
        assert await other.queue("jobs").cancel(id=message, running=True)
        await jobs.put(b"2")

        async def over() -> bool:
            return await jobs.size() == 0

        await eventually(over)
        await no_locks(locks)
    assert batches == [[b"2"]]


async def test_a_commit_that_comes_first_wins(session: zq.QueueSession, other: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(history=zq.History()))
    message = await jobs.put(b"1")
    async with session.transaction() as tx:
        assert await tx.take(jobs, timeout=30) is not None
    assert await other.queue("jobs").cancel(id=message, running=True) is zq.Alteration.NOT_FOUND
    assert await ended(jobs, message) is zq.Status.FINISHED


async def test_a_transaction_whose_message_was_cancelled_commits_nothing(
    session: zq.QueueSession, other: zq.QueueSession, locks: Locks
) -> None:
    jobs = session.queue("jobs")
    message = await jobs.put(b"1")
    with pytest.raises(zq.ClaimLostError):
        async with session.transaction() as tx:
            assert await tx.take(jobs, timeout=30) is not None
            tx.put("done", b"1")
            assert await other.queue("jobs").cancel(id=message, running=True)
    assert await session.queue("done").size() == 0
    assert await jobs.size() == 0
    assert await locks() == []


async def test_each_message_is_either_handled_or_cancelled_however_they_race(
    session: zq.QueueSession, other: zq.QueueSession, locks: Locks
) -> None:
    jobs, other_jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0))), other.queue("jobs")
    ids = await jobs.put_many([b"%d" % number for number in range(60)])

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        await asyncio.sleep(0.005)
        delivery.put("done", delivery.value)

    async with session.listener(jobs, handler, concurrency=8):
        outcomes = [await other_jobs.cancel(id=message, running=True) for message in reversed(ids)]

        async def over() -> bool:
            return await jobs.size() == 0

        await eventually(over)
        await no_locks(locks)
    done = {int(message.value) for message in await session.queue("done").peek(100)}
    cancelled = {59 - number for number, outcome in enumerate(outcomes) if outcome}
    assert zq.Alteration.HELD not in outcomes
    assert done | cancelled == set(range(60))
    assert done & cancelled == set()
    assert done
    assert cancelled


async def test_waiting_delayed_and_leased_messages_are_cancelled_too(
    session: zq.QueueSession, other: zq.QueueSession, locks: Locks
) -> None:
    jobs, other_jobs = session.queue("jobs"), other.queue("jobs")
    waiting, delayed = await jobs.put(b"1"), await jobs.put(b"2", delay=3600)
    assert await other_jobs.cancel(id=waiting, running=True)
    assert await other_jobs.cancel(id=delayed, running=True)
    leased = await jobs.put(b"3")
    (lease,) = await jobs.leases.take(1, lifetime=600)
    assert await other_jobs.cancel(id=leased) is zq.Alteration.HELD
    assert await other_jobs.cancel(id=leased, running=True)
    await jobs.leases.acknowledge([lease.token])
    assert await other_jobs.cancel(id=leased, running=True) is zq.Alteration.NOT_FOUND
    assert await jobs.size() == 0
    assert await locks() == []


async def test_a_message_in_flight_is_cancelled_and_the_next_of_its_group_is_delivered(
    session: zq.QueueSession, other: zq.QueueSession, locks: Locks
) -> None:
    jobs, handler = session.queue("jobs"), Slow(b"1")
    first = await jobs.put(b"1", group="g")
    await jobs.put(b"2", group="g")
    async with session.listener(jobs, handler, concurrency=4):
        await handler.until(b"1")
        await asyncio.sleep(0.1)
        assert handler.begun == [b"1"]
        assert await other.queue("jobs").cancel(id=first, running=True)

        async def over() -> bool:
            return await jobs.size() == 0 and handler.finished == [b"2"]

        await eventually(over)
        await no_locks(locks)
    assert handler.cancelled == [b"1"]


async def test_a_handler_is_cancelled_after_its_session_has_ended(
    session: zq.QueueSession, other: zq.QueueSession, expire: Expire
) -> None:
    jobs, handler = session.queue("jobs"), Slow(b"1")
    message = await jobs.put(b"1")
    async with session.listener(jobs, handler):
        await handler.until(b"1")
        await expire(session)
        assert await other.queue("jobs").cancel(id=message, running=True)

        async def cancelled() -> bool:
            return bool(handler.cancelled)

        await eventually(cancelled)
    assert await other.queue("jobs").size() == 0
