"""The clock of a session: a test moves it, and timers up to its new time fire, on a real server."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import TestClock
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def session(zookeeper: str, queue_root: str, clock: TestClock) -> AsyncIterator[zq.QueueSession]:
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(zq.connect(zookeeper, root=queue_root, clock=clock))


async def test_a_message_for_next_year_is_delivered_when_the_clock_moves_there(
    session: zq.QueueSession, clock: TestClock
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"next year", delay=timedelta(days=365))
    async with jobs.consume() as deliveries:
        waiting = asyncio.ensure_future(anext(deliveries))
        await eventually(lambda: _consumed(jobs))
        clock.advance(timedelta(days=364))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        clock.advance(timedelta(days=1))
        assert (await waiting).value == b"next year"


async def _consumed(jobs: zq.Queue[bytes]) -> bool:
    return (await jobs.stats()).consumers == 1


async def test_clock_moves_of_any_length_add_up(session: zq.QueueSession, clock: TestClock) -> None:
    jobs = session.queue("jobs")
    for number in range(6):
        await jobs.put(b"%d" % number, delay=100)
        assert (await jobs.stats()).scheduled == 1
        clock.advance(101)
        async with session.transaction() as tx:
            message = await tx.take(jobs, timeout=60)
            assert message is not None
            assert message.value == b"%d" % number


async def test_a_backoff_ends_when_the_clock_is_moved_past_it(session: zq.QueueSession, clock: TestClock) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Schedule([3600, 7200])))
    await jobs.put(b"fails twice", priority=-3)
    attempts = list[int]()
    async with jobs.consume() as deliveries:
        for backoff in (3600, 7200, 0):
            delivery = await asyncio.wait_for(anext(deliveries), 50)
            attempts.append(delivery.attempt)
            if backoff:
                await delivery.rollback()
                clock.advance(backoff)
    assert attempts == [1, 2, 3]


async def test_a_take_times_out_by_the_test_clock(session: zq.QueueSession, clock: TestClock) -> None:
    await session.queue("jobs").configure(zq.QueueConfig())
    async with session.transaction() as tx:
        waiting = asyncio.ensure_future(tx.take(session.queue("jobs"), timeout=1000))
        await eventually(lambda: _consumed(session.queue("jobs")))
        clock.advance(1000)
        assert await asyncio.wait_for(waiting, 50) is None


async def test_a_clock_move_affects_only_the_sessions_that_share_the_clock(
    zookeeper: str, queue_root: str, clock: TestClock
) -> None:
    async with (
        zq.connect(zookeeper, root=queue_root, clock=clock) as moved,
        zq.connect(zookeeper, root=queue_root, clock=clock) as also_moved,
        zq.connect(zookeeper, root=queue_root) as unmoved,
    ):
        at = datetime.now(UTC) + timedelta(hours=3)
        await moved.queue("jobs").put(b"later", at=at)
        clock.advance(timedelta(hours=3, seconds=1))
        async with unmoved.transaction() as tx:
            assert await tx.take(unmoved.queue("jobs")) is None
        async with also_moved.transaction() as tx:
            assert await tx.take(also_moved.queue("jobs"), timeout=20) is not None


@pytest.mark.parametrize("by", [-1, timedelta(seconds=-1), float("nan")])
def test_a_clock_cannot_move_backwards(by: float | timedelta) -> None:
    with pytest.raises(ValueError, match=r"by=.*0 or more"):
        TestClock().advance(by)


async def test_sleeping_tasks_wake_once_and_in_order(clock: TestClock) -> None:
    woken: list[str] = []
    clock.call_later(30, lambda: woken.append("second"))
    clock.call_later(20, lambda: woken.append("first"))
    clock.call_later(0.01, lambda: woken.append("by itself"))
    clock.call_later(25, lambda: woken.append("cancelled")).cancel()
    far = clock.call_later(1000, lambda: woken.append("too far"))
    await asyncio.sleep(0.1)
    clock.advance(40)
    clock.advance(40)
    await asyncio.sleep(0.01)
    far.cancel()
    assert woken == ["by itself", "first", "second"]
