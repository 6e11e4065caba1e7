"""Handlers: mistakes that would go unnoticed are reported, and each call has a time limit."""

from __future__ import annotations

import asyncio
import gc
import logging
import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import DirectPutWarning
from aiozkqueue.testing import assert_dead_lettered, assert_empty, assert_put

if TYPE_CHECKING:
    from aiozkqueue.testing import QueueServer, TestClock


async def test_a_handler_that_takes_too_long_is_cancelled_and_its_message_is_retried(
    session: zq.QueueSession, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0)))
    cancelled: list[int] = []

    async def slow(delivery: zq.Delivery[bytes]) -> None:
        delivery.put("results", b"never")
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(delivery.attempt)
            raise

    await jobs.put(b"1")
    with caplog.at_level(logging.WARNING):
        async with session.listener(jobs, slow, timeout=timedelta(seconds=0.2)):
            await assert_dead_lettered(jobs, b"1", reason="the handler did not finish within 0.2 s", timeout=60)
    assert cancelled == [1, 2]
    assert await session.queue("results").size() == 0
    assert "TimeoutError: the handler did not finish within 0.2 s" in caplog.text
    assert "await asyncio.sleep(3600)" in caplog.text  # the line that took too long


async def test_the_time_limit_follows_the_clock_of_the_session(
    queue_server: QueueServer, queue_clock: TestClock
) -> None:
    started = asyncio.Event()

    async def slow(delivery: zq.Delivery[bytes]) -> None:
        started.set()
        if delivery.attempt == 1:
            await asyncio.sleep(3600)

    async with queue_server.connect() as session:
        jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))
        await jobs.put(b"1")
        async with session.listener(jobs, slow, timeout=600):
            async with asyncio.timeout(60):
                await started.wait()
            queue_clock.advance(601)
            await assert_empty(jobs, timeout=60)


async def test_a_timeout_error_of_the_handler_stays_its_own(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeOnce())

    async def impatient(delivery: zq.Delivery[bytes]) -> None:
        msg = f"the bank is slow for {delivery.id}"
        raise TimeoutError(msg)

    await jobs.put(b"1")
    async with session.listener(jobs, impatient, timeout=60):
        await assert_dead_lettered(jobs, b"1", reason="the bank is slow", timeout=60)


async def test_a_handler_that_finishes_in_time_is_not_cancelled_later(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")

    async def quick(delivery: zq.Delivery[bytes]) -> None:
        delivery.put("results", delivery.value)

    async with session.listener(jobs, quick, timeout=0.5):
        for number in range(3):
            await jobs.put(b"%d" % number)
            await assert_put(session.queue("results"), b"%d" % number, timeout=60)
            await asyncio.sleep(0.3)  # longer than the limit in total, in the same task


async def test_a_direct_put_in_a_handler_warns_and_one_outside_does_not(session: zq.QueueSession) -> None:
    jobs, other = session.queue("jobs"), session.queue("other")

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        with pytest.warns(DirectPutWarning, match=r"a delivery of queue 'jobs'.*delivery\.put"):
            await other.put(b"1")
        await delivery.commit()
        await other.put(b"2")  # no warning after the delivery has been settled

    await jobs.put(b"x")
    async with session.listener(jobs, handler):
        await assert_put(other, b"2", timeout=60)
        await other.put(b"3")
        await assert_empty(jobs, timeout=60)


async def test_a_direct_put_is_reported_once_for_all_messages_of_a_handler(session: zq.QueueSession) -> None:
    """A text with the id of each message is shown for each, and Python keeps every text that it has shown."""
    jobs, other = session.queue("jobs"), session.queue("other")

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        await other.put(delivery.value)

    await jobs.put_many([b"1", b"2", b"3"])
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        async with session.listener(jobs, handler):
            await assert_empty(jobs, timeout=60)
    assert [warning.category for warning in shown] == [DirectPutWarning]
    assert await other.size() == 3


async def test_a_direct_put_in_the_block_of_a_delivery_warns(session: zq.QueueSession) -> None:
    jobs, other = session.queue("jobs"), session.queue("other")
    await jobs.put_many([b"1", b"2"])
    async with jobs.consume(until_idle=0) as deliveries:
        async for delivery in deliveries:
            async with delivery:
                with pytest.warns(DirectPutWarning):
                    await other.put(delivery.value)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                await other.put(delivery.value)
    assert await other.size() == 4


async def test_a_listener_that_was_never_run_warns(session: zq.QueueSession) -> None:
    async def handler(delivery: zq.Delivery[bytes]) -> None: ...

    listener = session.listener(session.queue("jobs"), handler)
    with pytest.warns(ResourceWarning, match=r"Listener of queue 'jobs'.*was never run; run it with"):
        del listener
        gc.collect()


async def test_a_listener_that_ran_or_was_stopped_does_not_warn(session: zq.QueueSession) -> None:
    async def handler(delivery: zq.Delivery[bytes]) -> None: ...

    stopped = session.listener(session.queue("jobs"), handler)
    stopped.stop()
    ran = session.listener(session.queue("jobs"), handler)
    async with ran:
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del stopped, ran
        gc.collect()


async def test_a_handler_that_takes_no_delivery_is_refused(session: zq.QueueSession) -> None:
    async def nothing() -> None: ...
    async def two(delivery: zq.Delivery[bytes], bank: object) -> None: ...

    for wrong in (nothing, two):
        handler: Any = wrong
        with pytest.raises(zq.InvalidOptionError, match=rf"{wrong.__name__}\(.*called with one argument, the delivery"):
            session.listener(session.queue("jobs"), handler)


async def test_raising_the_class_reject_dead_letters_the_message(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")

    async def handler(_: zq.Delivery[bytes]) -> None:
        raise zq.Reject

    await jobs.put(b"1")
    async with session.listener(jobs, handler):
        await assert_dead_lettered(jobs, b"1", reason="rejected by its handler", timeout=60)


def test_a_delay_that_is_not_a_number_is_refused_when_the_retry_is_made() -> None:
    with pytest.raises(zq.InvalidOptionError, match="Retry: delay takes seconds"):
        zq.Retry(delay=cast("float", "soon"))
