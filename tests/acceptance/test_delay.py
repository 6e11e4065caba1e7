"""Delays: ``put(..., delay=seconds)`` and ``put(..., at=datetime)``; a message is not delivered before it is due."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime, timedelta, timezone
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.layout import HOUR
from aiozkqueue.session.internals import core_of, state_of
from aiozkqueue.testing import ZooKeeperProxy
from tests.acceptance.test_priorities import listings_of
from tests.integration.queue.conftest import eventually, take_one

if TYPE_CHECKING:
    from aiozkqueue.testing import TestClock
    from tests.acceptance.conftest import OnClock
    from tests.integration.queue.conftest import Opener
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(180)

#: Seconds within which an idle consumer gets a due message on a busy machine; an idle machine needs about 0.05.
SOON = 30.0


async def drained(queue: zq.Queue[bytes]) -> list[bytes]:
    """Consume the waiting messages."""
    async with queue.consume(until_idle=0, prefetch=1) as deliveries:
        return [delivery.value async for delivery in deliveries]


async def test_a_delayed_message_is_delivered_when_it_is_due_and_not_before(
    on_clock: OnClock, clock: TestClock
) -> None:
    jobs = (await on_clock()).queue("jobs")
    async with jobs.consume() as deliveries:
        await jobs.put(b"later", delay=6000)
        for moved in (0, 2000, 3900):
            clock.advance(moved)
            await jobs.put(b"now")
            assert (await anext(deliveries)).value == b"now"
        waiting = asyncio.ensure_future(anext(deliveries))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        clock.advance(100)
        assert (await waiting).value == b"later"


async def test_an_idle_consumer_in_another_process_notices_the_first_delayed_message(
    open_session: Opener,
) -> None:
    producer, consumer = await open_session(), await open_session()
    await producer.queue("jobs").configure(zq.QueueConfig())
    async with consumer.queue("jobs").consume() as deliveries:
        waiting = asyncio.ensure_future(anext(deliveries))
        await eventually(lambda: _registered(producer))
        await asyncio.sleep(0.3)
        put = monotonic()
        await producer.queue("jobs").put(b"later", delay=0.5)
        assert (await waiting).value == b"later"
        assert 0.5 <= monotonic() - put < 0.5 + SOON


async def _registered(session: zq.QueueSession, consumers: int = 1) -> bool:
    return (await session.queue("jobs").stats()).consumers == consumers


async def test_an_idle_consumer_first_gets_a_new_message_that_is_due_earlier(
    on_clock: OnClock, clock: TestClock
) -> None:
    producer, consumer = await on_clock(), await on_clock()
    jobs = producer.queue("jobs")
    await jobs.put(b"far", delay=36_000)
    await jobs.put(b"second", delay=1200)
    async with consumer.queue("jobs").consume() as deliveries:
        waiting = asyncio.ensure_future(anext(deliveries))
        await eventually(lambda: _registered(producer))
        await asyncio.sleep(0.4)
        await jobs.put(b"first", delay=200)
        clock.advance(200)
        assert (await waiting).value == b"first"
        clock.advance(1000)
        assert (await anext(deliveries)).value == b"second"


async def test_a_time_with_a_zone_is_stored_to_the_millisecond(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    at = datetime(2999, 12, 31, 23, 59, 59, 123_456, tzinfo=timezone(timedelta(hours=5)))
    await jobs.put(b"later", at=at)
    (message,) = await jobs.peek()
    assert message.due == datetime(2999, 12, 31, 18, 59, 59, 124_000, tzinfo=UTC)
    assert (await jobs.stats()).scheduled == (await jobs.stats()).size == await jobs.size() == 1
    assert await drained(jobs) == []
    assert await jobs.purge() == 1


@pytest.mark.parametrize(
    "options",
    [{"delay": 0}, {"delay": None}, {"at": None}, {"at": datetime(2020, 1, 1, tzinfo=UTC)}, {"delay": timedelta()}],
)
async def test_a_message_with_a_zero_delay_or_a_past_time_is_delivered_at_once(
    session: zq.QueueSession, options: Any
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"first")
    await jobs.put(b"now", **options)
    assert await drained(jobs) == [b"first", b"now"]


async def test_a_transactions_delay_counts_from_the_put(on_clock: OnClock, clock: TestClock) -> None:
    session = await on_clock()
    jobs = session.queue("jobs")
    async with session.transaction() as tx:
        tx.put(jobs, b"later", delay=6000)
        clock.advance(2000)
    async with session.transaction() as tx:
        assert await tx.take(jobs) is None
        clock.advance(3900)
        assert await tx.take(jobs) is None
        clock.advance(100)
        assert await tx.take(jobs, timeout=30) is not None


async def test_a_handler_puts_with_a_delay(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"first")
    async with jobs.consume(until_idle=60) as deliveries:
        async for delivery in deliveries:
            async with delivery:
                if delivery.value == b"first":
                    delivery.put(jobs, b"second", delay=0.3)
                else:
                    break
    assert delivery.value == b"second"


async def test_the_most_urgent_of_the_due_messages_is_delivered_first(on_clock: OnClock, clock: TestClock) -> None:
    jobs = (await on_clock()).queue("jobs")
    at = datetime.now(UTC) + timedelta(seconds=600)
    await jobs.put(b"low", at=at, priority=3)
    await jobs.put(b"plain", at=at)
    await jobs.put(b"urgent", at=at, priority=-3)
    assert [(message.value, message.priority) for message in await jobs.peek()] == [
        (b"urgent", -3),
        (b"plain", 0),
        (b"low", 3),
    ]
    clock.advance(601)
    async with jobs.consume(prefetch=1) as deliveries:
        assert [(await anext(deliveries)).value for _ in range(3)] == [b"urgent", b"plain", b"low"]


async def test_scheduled_messages_are_claimed_in_place_and_keep_their_place_through_retries(
    on_clock: OnClock, clock: TestClock, server_view: Observer, queue_root: str
) -> None:
    jobs = (await on_clock()).queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0.2)))
    await jobs.put(b"later", delay=600)  # a message that is due when it is sent would be put to the plain lane
    (hour,) = await server_view.children(f"{queue_root}/jobs/later")
    (name,) = await server_view.children(f"{queue_root}/jobs/later/{hour}")
    assert name.startswith("item-t")
    clock.advance(600)
    async with jobs.consume(until_idle=60) as deliveries:
        async for delivery in deliveries:
            assert await server_view.children(f"{queue_root}/jobs/later/{hour}") == [name]
            if delivery.attempt == 1:
                await delivery.rollback()
                continue
            await delivery.commit()
            break
    assert delivery.attempt == 2
    assert await jobs.size() == 0


async def test_a_rejected_message_is_redriven_without_a_delay(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"later", delay=0.2, priority=-1)
    async with session.transaction() as tx:
        message = await tx.take(jobs, timeout=30)
        assert message is not None
        tx.reject(message, "not now")
    assert await jobs.dead_letters.redrive() == 1
    assert await drained(jobs) == [b"later"]


async def test_a_message_far_in_the_future_blocks_nothing_and_is_not_listed_repeatedly(
    session: zq.QueueSession, open_session: Opener, zookeeper_proxy: ZooKeeperProxy, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.put_many([b"far"] * 100, delay=timedelta(days=300))
    other = (await open_session(zookeeper_proxy.hosts)).queue("jobs")
    listed = listings_of(zookeeper_proxy, f"{queue_root}/jobs/later/")
    async with other.consume() as deliveries:
        for _ in range(300):
            await jobs.put(b"now")
            assert (await anext(deliveries)).value == b"now"
        assert not listed
        waiting = asyncio.ensure_future(anext(deliveries))
        await asyncio.sleep(1.5)
        assert not listed
        await jobs.put(b"now")
        await waiting


@pytest.mark.slow
async def test_ten_thousand_messages_due_at_once_are_shared_without_a_herd(on_clock: OnClock, clock: TestClock) -> None:
    count, consumers = 10_000, 4
    session = await on_clock()
    at = datetime.now(UTC) + timedelta(seconds=600)
    await session.queue("jobs").put_many([b"%d" % number for number in range(count)], at=at)
    delivered: list[bytes] = []
    early = 0

    async def consume(taker: zq.QueueSession) -> None:
        nonlocal early
        async with taker.queue("jobs").consume() as deliveries:
            async for delivery in deliveries:
                early += clock.time() < at.timestamp()
                delivered.append(delivery.value)
                if len(delivered) == count:
                    break

    takers = [await on_clock() for _ in range(consumers)]
    tasks = [asyncio.ensure_future(consume(taker)) for taker in takers]
    await eventually(lambda: _registered(session, consumers), 30)
    await asyncio.sleep(0.5)
    assert not delivered
    clock.advance(600)
    await eventually(lambda: _all(delivered, count), 120)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(delivered) == sorted(b"%d" % number for number in range(count))
    assert not early
    contended = sum(
        core_of(taker.queue("jobs")).dispatcher(state_of(taker.queue("jobs"))).counts.contended for taker in takers
    )
    assert contended < count / 128


async def _all(delivered: list[bytes], count: int) -> bool:
    return len(delivered) >= count


async def test_an_empty_past_hour_is_deleted_and_created_again_for_a_late_put(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"far", delay=36_000)
    (far,) = await server_view.children(f"{queue_root}/jobs/later")
    past = str(int(far) - 20)
    await server_view.create(f"{queue_root}/jobs/later/{past}/item-t{int(past) * HOUR}-iabc-0000000000", b"late")
    assert (await take_one(session)).value == b"late"
    await eventually(lambda: _hours_are(server_view, f"{queue_root}/jobs/later", [far], jobs))


async def test_a_consumer_takes_its_first_message_before_it_has_listed_all_of_many_past_hours(
    zookeeper: str, queue_root: str, session: zq.QueueSession, server_view: Observer
) -> None:
    jobs, later = session.queue("jobs"), f"{queue_root}/jobs/later"
    await jobs.put(b"far", delay=36_000)
    (far,) = await server_view.children(later)
    await jobs.put(b"first")
    hours = 3000
    await server_view.create_many(f"{later}/{400_000 + number}" for number in range(hours))
    async with ZooKeeperProxy(zookeeper) as proxy, zq.connect(proxy.hosts, root=queue_root) as other:
        async with other.queue("jobs").consume() as deliveries:
            async for delivery in deliveries:
                assert delivery.body == b"first"
                break
        assert sum(proxy.requests.values()) < hours / 2
        await eventually(lambda: _hours_are(server_view, later, [far], jobs), 60)


async def _hours_are(view: Observer, path: str, hours: list[str], jobs: zq.Queue[bytes]) -> bool:
    await drained(jobs)
    return await view.children(path) == hours


async def test_busy_consumers_get_a_scheduled_message_when_it_is_due(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"scheduled", delay=1)
    await jobs.put_many([b"plain"] * 20_000)
    before = 0
    async with jobs.consume(prefetch=1) as deliveries:
        while (await anext(deliveries)).value == b"plain":
            before += 1
            await asyncio.sleep(0.0005)
    assert before < 20_000


async def test_busy_consumers_find_a_message_that_another_session_scheduled_meanwhile(open_session: Opener) -> None:
    producer, consumer = await open_session(), await open_session()
    await producer.queue("jobs").put_many([b"plain"] * 20_000)
    before = 0
    async with consumer.queue("jobs").consume(prefetch=1) as deliveries:
        while (await anext(deliveries)).value == b"plain":
            before += 1
            if before == 400:
                await producer.queue("jobs").put(b"scheduled", delay=0.3)
            await asyncio.sleep(0.0005)
    assert before < 20_000


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1},
        {"delay": math.nan},
        {"delay": math.inf},
        {"delay": 1e10},
        {"delay": "1"},
        {"delay": True},
        {"at": datetime(2030, 1, 1)},  # noqa: DTZ001 - naive on purpose
        {"at": datetime(9999, 12, 31, 23, 59, tzinfo=timezone(timedelta(hours=-12)))},
        {"at": 1_900_000_000},
        {"delay": 1, "at": datetime(2030, 1, 1, tzinfo=UTC)},
    ],
    ids=str,
)
async def test_an_invalid_delay_or_time_is_refused_before_it_is_sent(
    session: zq.QueueSession, options: dict[str, Any]
) -> None:
    jobs = session.queue("jobs")
    with pytest.raises(zq.InvalidOptionError, match=next(iter(options))):
        await jobs.put(b"", **options)
    assert not await jobs.exists()
