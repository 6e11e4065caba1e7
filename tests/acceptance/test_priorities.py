"""Priorities: ``put(..., priority=-128..127)``; the lowest number comes first, and the default is 0."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import Opcode, Request
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from aiozkqueue.testing import ZooKeeperProxy
    from tests.integration.queue.conftest import Opener
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(60)


async def drained(queue: zq.Queue[bytes]) -> list[bytes]:
    """Consume the waiting messages."""
    async with queue.consume(until_idle=0, prefetch=1) as deliveries:
        return [delivery.value async for delivery in deliveries]


async def test_the_most_urgent_message_comes_first_and_the_oldest_of_equal_priority(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    for value, priority in ((b"low", 10), (b"plain", 0), (b"urgent", -10), (b"plain too", 0), (b"urgent too", -10)):
        await jobs.put(value, priority=priority)
    assert await drained(jobs) == [b"urgent", b"urgent too", b"plain", b"plain too", b"low"]


async def test_the_lowest_and_highest_priorities_work_like_the_others(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"last", priority=127)
    await jobs.put(b"first", priority=-128)
    assert await drained(jobs) == [b"first", b"last"]


async def test_a_transaction_puts_with_priority_and_all_its_messages_appear_at_once(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    async with session.transaction() as tx:
        tx.put(jobs, b"plain")
        tx.put(jobs, b"urgent", priority=-1)
        assert await jobs.size() == 0
    assert await drained(jobs) == [b"urgent", b"plain"]


async def test_another_process_sees_the_priority_and_the_order(open_session: Opener) -> None:
    producer, consumer = await open_session(), await open_session()
    assert await consumer.queue("jobs").size() == 0
    await producer.queue("jobs").put_many([b"a", b"b"], priority=5)
    await producer.queue("jobs").put(b"c", priority=3)
    jobs = consumer.queue("jobs")
    assert [(message.value, message.priority) for message in await jobs.peek()] == [(b"c", 3), (b"a", 5), (b"b", 5)]
    assert (await jobs.size(), (await jobs.stats()).size) == (3, 3)
    async with consumer.transaction() as tx:
        message = await tx.take(jobs)
        assert message is not None
        assert (message.value, message.priority) == (b"c", 3)
    assert await jobs.purge() == 2


async def test_a_retry_keeps_the_priority_and_the_place(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))
    await jobs.put_many([b"urgent 1", b"urgent 2"], priority=-1)
    await jobs.put(b"plain")
    delivered: list[tuple[bytes, int]] = []
    async with jobs.consume(until_idle=0, prefetch=1) as deliveries:
        async for delivery in deliveries:
            delivered.append((delivery.value, delivery.attempt))
            if delivered == [(b"urgent 1", 1)]:
                await delivery.rollback()
    assert delivered == [(b"urgent 1", 1), (b"urgent 1", 2), (b"urgent 2", 1), (b"plain", 1)]


async def test_a_retry_after_a_backoff_overtakes_less_urgent_messages(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0.2)))
    await jobs.put(b"urgent", priority=-1)
    await jobs.put_many([b"plain"] * 3000)
    delivered: list[tuple[bytes, int]] = []
    async with jobs.consume(until_idle=30, prefetch=1) as deliveries:
        async for delivery in deliveries:
            delivered.append((delivery.value, delivery.attempt))
            if delivered == [(b"urgent", 1)]:
                await delivery.rollback()
            elif delivered[-1] == (b"urgent", 2):
                break
            else:
                await asyncio.sleep(0.001)
    assert len(delivered) < 3000


async def test_a_redriven_dead_letter_keeps_its_priority(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"urgent", priority=-7)
    async with session.transaction() as tx:
        message = await tx.take(jobs)
        assert message is not None
        tx.reject(message, "not now")
    await jobs.put(b"plain")
    assert await jobs.dead_letters.redrive() == 1
    assert await drained(jobs) == [b"urgent", b"plain"]


@pytest.mark.parametrize("mode", ["idle", "working"])
async def test_an_urgent_put_overtakes_a_backlog_without_another_listing(
    session: zq.QueueSession, open_session: Opener, zookeeper_proxy: ZooKeeperProxy, queue_root: str, mode: str
) -> None:
    """It overtakes after at most 64 messages or 100 ms; the test allows half a second for busy machines."""
    producer = session.queue("jobs")
    await producer.put(b"urgent", priority=-1)  # creates the lane of this priority
    consumer = (await open_session(zookeeper_proxy.hosts)).queue("jobs")
    async with consumer.consume(prefetch=1) as deliveries:
        assert (await anext(deliveries)).value == b"urgent"
        await producer.put_many([b"plain"] * 5000)
        worked = 0
        while worked < (600 if mode == "working" else 30):
            assert (await anext(deliveries)).value == b"plain"
            worked += 1
        listed = listings_of(zookeeper_proxy, f"{queue_root}/jobs/items")
        await producer.put(b"urgent", priority=-1)
        soon, late = monotonic() + 0.5, 0
        while (await anext(deliveries)).value == b"plain":
            late += monotonic() > soon
        assert late <= 64
        assert not listed


def listings_of(proxy: ZooKeeperProxy, folder: str) -> list[Request]:
    """Collect the listings of a folder from now on."""
    listings: list[Request] = []

    def note(request: Request) -> bool:
        if request.opcode in {Opcode.GET_CHILDREN, Opcode.GET_CHILDREN2} and folder.encode() in request.body:
            listings.append(request)
        return False

    proxy.hold_request(note)
    return listings


async def test_an_urgent_message_released_by_another_session_overtakes_a_backlog(open_session: Opener) -> None:
    holder, consumer = await open_session(), await open_session()
    await holder.queue("jobs").put(b"urgent", priority=-1)
    async with holder.transaction(autocommit=False) as tx:
        assert await tx.take(holder.queue("jobs")) is not None
        await consumer.queue("jobs").put_many([b"plain"] * 20_000)
        async with consumer.queue("jobs").consume(prefetch=1) as deliveries:
            for _ in range(300):
                assert (await anext(deliveries)).value == b"plain"
            await tx.rollback(delay=0)
            overtaken = 0
            while (await anext(deliveries)).value == b"plain":
                overtaken += 1
            assert overtaken < 10_000


async def test_priorities_and_shards_combine(session: zq.QueueSession, server_view: Observer, queue_root: str) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(shards=2))
    await jobs.put_many([b"urgent"] * 10, priority=-1)
    await jobs.configure(zq.QueueConfig(shards=4))
    await jobs.put_many([b"urgent"] * 10, priority=-1)
    await jobs.put_many([b"plain"] * 10)
    lanes = await server_view.children(f"{queue_root}/jobs/lanes")
    assert {f"p127s{shard}g0" for shard in range(4)} <= set(lanes)
    assert await drained(jobs) == [b"urgent"] * 20 + [b"plain"] * 10


async def test_a_queue_without_priorities_has_no_priority_lanes_and_no_watches_under_load(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.put_many([b"plain"] * 10, priority=0)
    assert await drained(jobs) == [b"plain"] * 10
    assert await server_view.children(f"{queue_root}/jobs/lanes") == []


@pytest.mark.parametrize("priority", [128, -129, 1.0, "1", None, True])
async def test_an_invalid_priority_is_refused_before_it_is_sent(session: zq.QueueSession, priority: Any) -> None:
    jobs = session.queue("jobs")
    with pytest.raises(zq.InvalidOptionError, match="priority"):
        await jobs.put(b"", priority=priority)
    async with session.transaction(autocommit=False) as tx:
        with pytest.raises(zq.InvalidOptionError, match="priority"):
            tx.put(jobs, b"", priority=priority)
    assert not await jobs.exists()


async def test_an_idle_consumer_notices_a_new_priority(open_session: Opener) -> None:
    producer, consumer = await open_session(), await open_session()
    await producer.queue("jobs").configure(zq.QueueConfig())
    async with consumer.queue("jobs").consume() as deliveries:
        waiting = asyncio.ensure_future(anext(deliveries))
        await eventually(lambda: _registered(producer))
        await asyncio.sleep(0.2)
        await producer.queue("jobs").put(b"first of its kind", priority=99)
        assert (await asyncio.wait_for(waiting, 50)).value == b"first of its kind"


async def _registered(session: zq.QueueSession) -> bool:
    return (await session.queue("jobs").stats()).consumers == 1


async def test_stats_count_the_waiting_messages_of_each_priority(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1")
    assert (await jobs.stats()).priorities == {}
    await jobs.put(b"2", priority=-5)
    await jobs.put(b"3", priority=7)
    await jobs.put(b"4", priority=7)
    await jobs.put(b"later", priority=7, delay=3600)
    stats = await jobs.stats()
    assert (stats.priorities, stats.scheduled) == ({-5: 1, 0: 1, 7: 2}, 1)
