"""Backoff is visible: `peek`, `state` and `stats` show attempts, the last error and the next attempt."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest

import aiozkqueue as zq
from tests.integration.queue.conftest import take_one

SCHEDULE = zq.Schedule([100, 1000, 10000])


async def fail(session: zq.QueueSession, why: str) -> None:
    """Deliver the next message to a handler that fails."""
    with pytest.raises(ValueError, match=why):
        async with session.queue("jobs").consume(until_idle=10) as deliveries:
            async for delivery in deliveries:
                async with delivery:
                    raise ValueError(why)


async def test_peek_shows_the_attempts_the_last_error_and_the_next_attempt_of_a_message(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=SCHEDULE))
    await jobs.put(b"one")
    (fresh,) = await jobs.peek()
    assert (fresh.attempt, fresh.error, fresh.due) == (0, None, None)
    dues: list[datetime] = []
    for attempt, why in enumerate(("no paper", "no ink", "no power"), start=1):
        await fail(session, why)
        (peeked,) = await other.queue("jobs").peek()
        assert peeked.attempt == attempt
        assert peeked.error is not None
        assert why in peeked.error
        assert peeked.due is not None
        dues.append(peeked.due)
        await jobs.admin.release_claims()
        (free,) = await jobs.peek()
        assert (free.attempt, free.error, free.due) == (attempt, peeked.error, None)
    assert timedelta(0) < dues[0] - datetime.now(UTC) < timedelta(seconds=200)
    assert all(later - earlier > timedelta(seconds=500) for earlier, later in itertools.pairwise(dues))


async def test_stats_count_retrying_and_waiting_messages_separately(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=SCHEDULE))
    await jobs.put(b"one")
    await fail(session, "no paper")
    await jobs.put(b"two")
    stats = await jobs.stats()
    assert (stats.size, stats.retrying, stats.delayed, stats.in_flight) == (2, 1, 1, 0)
    assert (await take_one(session)).body == b"two"


async def test_peek_and_stats_also_show_a_retry_that_a_handler_raised(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    job = await jobs.put(b"one")
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(jobs, timeout=30)
        await tx.rollback(delay=500)
    (peeked,) = await jobs.peek()
    assert peeked.attempt == 1
    assert peeked.due is not None
    assert timedelta(seconds=100) < peeked.due - datetime.now(UTC) < timedelta(seconds=501)
    assert (await jobs.state(job)).due == peeked.due
