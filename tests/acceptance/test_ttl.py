"""Lifetimes: a message that is not delivered in time is dropped, or becomes a dead letter."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.operations.ttl import sweep_expired
from aiozkqueue.session.internals import handle_of
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from aiozkqueue.testing import TestClock
    from tests.acceptance.conftest import OnClock
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(60)

#: LONGER is longer than the lifetime SHORT of a message.
SHORT, LONGER = 0.3, 1.0


async def bodies(session: zq.QueueSession) -> list[bytes]:
    """Take until no message is stored: takers also remove expired messages."""
    jobs, taken = session.queue("jobs"), list[bytes]()
    while await jobs.size():
        async with session.transaction() as tx:
            taken += [message.body for message in await tx.take_many(jobs, 100, timeout=0.2)]
    return taken


async def test_an_expired_message_is_not_delivered(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"short", ttl=SHORT)
    await jobs.put(b"long", ttl=timedelta(hours=1))
    await jobs.put(b"endless")
    await asyncio.sleep(LONGER)
    assert await bodies(session) == [b"long", b"endless"]
    for folder in ("items", "locks", "meta", "dlq"):
        assert await server_view.children(f"{queue_root}/jobs/{folder}") == [], folder


async def test_an_expired_message_becomes_a_dead_letter_if_the_queue_is_configured_so(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(expired="dead-letter"))
    await jobs.put(b"short", ttl=SHORT, headers={"trace": "t1"})
    await asyncio.sleep(LONGER)
    assert await bodies(session) == []
    (dead,) = await jobs.dead_letters.peek()
    assert (dead.body, dead.headers, dead.attempts) == (b"short", {"trace": "t1"}, 0)
    assert "it expired at" in dead.reason


async def test_an_expired_dead_letter_is_delivered_after_a_redrive(on_clock: OnClock, clock: TestClock) -> None:
    session = await on_clock()
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(expired="dead-letter"))
    await jobs.put(b"short", ttl=60)
    clock.advance(100)
    assert await bodies(session) == []
    assert await jobs.dead_letters.redrive() == 1
    assert await bodies(session) == [b"short"]


async def test_the_lifetime_of_the_queue_applies_to_puts_without_their_own(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(ttl=SHORT))
    await jobs.put(b"as the queue says")
    await jobs.put(b"its own", ttl=60)
    await jobs.put(b"endless", ttl=math.inf)
    async with session.transaction() as tx:
        tx.put(jobs, b"in a transaction")
    await asyncio.sleep(LONGER)
    assert await bodies(session) == [b"its own", b"endless"]


async def test_the_lifetime_of_a_delayed_message_starts_when_it_is_due(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"in time", delay=2 * SHORT, ttl=60)
    await jobs.put(b"too late", delay=0.1, ttl=SHORT)
    await asyncio.sleep(LONGER)
    assert await bodies(session) == [b"in time"]


async def test_an_expired_message_frees_its_unique_key(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1", key="k", unique=True, ttl=SHORT)
    await asyncio.sleep(LONGER)
    assert await bodies(session) == []
    await jobs.put(b"2", key="k", unique=True)


async def test_a_message_delivered_in_time_can_be_committed_after_its_lifetime(
    on_clock: OnClock, clock: TestClock
) -> None:
    session = await on_clock()
    jobs = session.queue("jobs")
    await jobs.put(b"1", ttl=60)
    async with session.transaction() as tx:
        assert await tx.take(jobs, timeout=30) is not None
        clock.advance(100)
    assert await jobs.size() == 0
    assert await jobs.dead_letters.size() == 0


async def test_a_message_that_fails_after_its_lifetime_is_not_redelivered(on_clock: OnClock, clock: TestClock) -> None:
    session = await on_clock()
    jobs = session.queue("jobs")
    await jobs.put(b"1", ttl=60)
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(jobs, timeout=30) is not None
        clock.advance(100)
        await tx.rollback(delay=0)
    assert await bodies(session) == []
    assert await jobs.size() == 0


@pytest.mark.parametrize("expired", ["drop", "dead-letter"])
async def test_concurrent_sweeps_remove_each_expired_message_once(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str, expired: Any
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(expired=expired))
    await jobs.put_many([b"%d" % n for n in range(20)], ttl=SHORT)
    await jobs.put(b"unique", ttl=SHORT, key="k", unique=True)
    await jobs.put(b"long", ttl=60)
    await asyncio.sleep(LONGER)
    swept = await asyncio.gather(*(sweep_expired(handle_of(opened.queue("jobs"))) for opened in (session, other)))
    assert sum(swept) == 21
    assert [message.body for message in await jobs.peek()] == [b"long"]
    assert await jobs.dead_letters.size() == (21 if expired == "dead-letter" else 0)
    for folder in ("keys", "locks", "meta"):
        assert await server_view.children(f"{queue_root}/jobs/{folder}") == [], folder


async def test_a_held_message_is_not_swept(on_clock: OnClock, clock: TestClock) -> None:
    session, other = await on_clock(), await on_clock()
    jobs = session.queue("jobs")
    await jobs.put(b"1", ttl=60)
    async with session.transaction() as tx:
        assert await tx.take(jobs, timeout=30) is not None
        clock.advance(100)
        assert await sweep_expired(handle_of(other.queue("jobs"))) == 0


@pytest.mark.parametrize("ttl", [0, -1, math.nan, "60", True, 1e10])
async def test_invalid_lifetimes_are_refused(session: zq.QueueSession, ttl: Any) -> None:
    with pytest.raises(zq.InvalidOptionError, match="ttl"):
        await session.queue("jobs").put(b"1", ttl=ttl)


async def test_stats_count_expired_messages_that_are_still_stored(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(ttl=SHORT))
    await jobs.put(b"short")
    await jobs.put(b"long", ttl=3600)

    async def ended() -> bool:
        return (await jobs.stats()).expired == 1

    await eventually(ended, 30)
    assert (await jobs.stats()).size == 2
    await sweep_expired(session._runtime.handle("jobs"))
    stats = await jobs.stats()
    assert (stats.size, stats.expired) == (1, 0)
