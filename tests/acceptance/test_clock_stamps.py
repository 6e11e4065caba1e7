"""Timestamps stored after a clock was moved follow the clock, wherever they are compared or shown."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from aiozkqueue.testing import TestClock
    from tests.acceptance.conftest import OnClock
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(60)

DAY = timedelta(days=1)
STICKY = zq.QueueConfig(affinity="producer", reap_after=60, reap_every=10**8, history=zq.History())


def now(clock: TestClock) -> datetime:
    return datetime.fromtimestamp(clock.time(), UTC)


def is_now(moment: datetime | None, clock: TestClock) -> bool:
    return moment is not None and abs(now(clock) - moment) < timedelta(minutes=10)


async def test_a_sticky_message_from_before_the_move_is_reaped_and_a_fresh_one_is_not(
    on_clock: OnClock, clock: TestClock
) -> None:
    a, b = await on_clock(node="a"), await on_clock(node="b")
    jobs = a.queue("jobs")
    await jobs.configure(STICKY)
    for _ in range(3):
        old = await jobs.put(b"old")
        clock.advance(DAY)
        fresh = await jobs.put(b"fresh")
        assert await b.queue("jobs").admin.reap() == 1
        async with b.transaction() as tx:
            message = await tx.take(b.queue("jobs"), timeout=20)
            assert message is not None
            assert message.id == old
        clock.advance(61)
        assert await b.queue("jobs").admin.reap() == 1
        async with b.transaction() as tx:
            message = await tx.take(b.queue("jobs"), timeout=20)
            assert message is not None
            assert message.id == fresh


async def test_a_schedule_counts_from_the_date_of_the_put_after_a_move(on_clock: OnClock, clock: TestClock) -> None:
    session, attempts = await on_clock(), list[int]()
    jobs = session.queue("jobs")
    clock.advance(DAY)

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        attempts.append(delivery.attempt)
        raise zq.Retry(schedule=[3600, 7200, 10_800])

    await jobs.put(b"x")
    async with session.listener(jobs, handler):
        for attempt in (1, 2, 3, 4):
            await eventually(partial(_called, attempts, attempt))
            await asyncio.sleep(0.3)
            assert len(attempts) == attempt
            clock.advance(3610)
    [dead] = await jobs.dead_letters.peek()
    assert dead.attempts == 4


async def _called(attempts: list[int], count: int) -> bool:
    return len(attempts) >= count


async def test_the_dates_of_a_message_its_claim_its_end_and_its_dead_letter_follow_the_clock(
    on_clock: OnClock, clock: TestClock
) -> None:
    session = await on_clock()
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(history=zq.History()))
    for _ in range(3):
        clock.advance(DAY)
        message_id = await jobs.put(b"x")
        [peeked] = await jobs.peek()
        oldest = (await jobs.stats()).oldest
        async with session.transaction() as tx:
            message = await tx.take(jobs)
            assert message is not None
            claimed = (await jobs.state(message_id)).claimed_at
        assert is_now(peeked.enqueued_at, clock)
        assert is_now(oldest, clock)
        assert is_now(message.enqueued_at, clock)
        assert is_now(claimed, clock)
        record = [record async for record in jobs.history()][-1]
        assert all(is_now(moment, clock) for moment in (record.put_at, record.claimed_at, record.ended_at)), record
        assert record.put_at <= (record.claimed_at or record.put_at) <= record.ended_at
        await jobs.put(b"bad")
        async with jobs.consume(until_idle=0) as deliveries:
            async for delivery in deliveries:
                await delivery.reject("bad")
        [dead] = await jobs.dead_letters.peek()
        assert is_now(dead.died_at, clock)
        assert is_now(dead.enqueued_at, clock)
        await jobs.dead_letters.purge()


async def test_a_later_session_also_sees_that_a_message_aged_by_the_length_of_the_clock_move(
    on_clock: OnClock, clock: TestClock
) -> None:
    session = await on_clock()
    for number in range(20):  # each put is right after a clock move and right before the next one
        put_at = now(clock)
        await session.queue("jobs").put(b"%d" % number)
        clock.advance(DAY)
        [peeked] = await (await on_clock() if number % 5 == 0 else session).queue("jobs").peek()
        assert abs(peeked.enqueued_at - put_at) < timedelta(minutes=10)
        await session.queue("jobs").purge()


async def test_clean_up_follows_its_interval_on_the_clock(
    on_clock: OnClock, clock: TestClock, server_view: Observer, queue_root: str
) -> None:
    session = await on_clock()
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(clean_every=1000))
    await jobs.put(b"x")
    path = f"{queue_root}/jobs/janitor"
    clock.advance(1200)
    await server_view.until_there(path)
    await _janitor_waits(jobs)
    versions = list[int]()
    for _ in range(2):  # the janitor checks once a minute, and cleans every thousand seconds
        clock.advance(1200)

        async def cleaned() -> bool:
            version = await server_view.version(path)
            return version > (versions[-1] if versions else 0)

        await eventually(cleaned)
        versions.append(await server_view.version(path))
        await _janitor_waits(jobs)
        for _ in range(8):
            clock.advance(70)
            await _janitor_waits(jobs)
        assert await server_view.version(path) == versions[-1]


async def _janitor_waits(queue: zq.Queue[bytes]) -> None:
    """Wait until the janitor's requests are answered and it waits for the clock again."""
    await asyncio.sleep(0.1)
    await queue.size()  # replies arrive in the order of the requests


async def test_a_delay_and_a_lifetime_that_begin_after_a_move_keep_their_length(
    on_clock: OnClock, clock: TestClock
) -> None:
    session = await on_clock()
    jobs = session.queue("jobs")
    clock.advance(DAY)
    await jobs.put(b"later", delay=100)
    await jobs.put(b"mortal", ttl=50)
    clock.advance(40)
    async with session.transaction() as tx:
        message = await tx.take(jobs)
        assert message is not None
        assert message.value == b"mortal"
        await tx.rollback(delay=0)
    clock.advance(20)
    async with session.transaction() as tx:
        assert await tx.take(jobs) is None
    clock.advance(50)
    async with session.transaction() as tx:
        message = await tx.take(jobs, timeout=20)
        assert message is not None
        assert message.value == b"later"


async def test_sessions_on_the_system_clock_show_the_timestamps_of_the_server(
    session: zq.QueueSession, on_clock: OnClock, clock: TestClock
) -> None:
    moved = await on_clock()
    clock.advance(DAY)
    await moved.queue("jobs").put(b"x")
    [peeked] = await session.queue("jobs").peek()
    assert abs(datetime.now(UTC) - peeked.enqueued_at) < timedelta(minutes=10)
