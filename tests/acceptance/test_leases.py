"""Leases: one process polls messages and another acknowledges them by their tokens."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from aiozkqueue.testing import TestClock
    from tests.acceptance.conftest import OnClock
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(60)


async def test_a_leased_message_is_held_and_acknowledged_by_its_token(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    await session.queue("jobs").put_many([b"1", b"2"])
    first, second = await session.queue("jobs").leases.take(10, lifetime=60)
    assert (first.body, second.body, first.attempt) == (b"1", b"2", 1)
    assert await other.queue("jobs").leases.take(10) == []
    await other.queue("jobs").leases.acknowledge([first.token, second.token])
    for folder in ("items", "locks", "due", "meta"):
        assert await server_view.children(f"{queue_root}/jobs/{folder}") == [], folder


async def test_a_lease_outlives_the_session_that_took_it(
    session: zq.QueueSession, zookeeper: str, queue_root: str
) -> None:
    await session.queue("jobs").put(b"1")
    async with zq.connect(zookeeper, root=queue_root) as gone:
        (lease,) = await gone.queue("jobs").leases.take(lifetime=60)
    assert await session.queue("jobs").leases.take() == []
    await session.queue("jobs").leases.acknowledge([lease.token])
    assert await session.queue("jobs").size() == 0


async def test_a_message_whose_lease_ends_is_redelivered_as_the_next_attempt(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    await session.queue("jobs").put(b"1")
    (lease,) = await session.queue("jobs").leases.take(lifetime=0.5)
    (redelivered,) = await other.queue("jobs").leases.take(lifetime=60, timeout=30)
    assert (redelivered.id, redelivered.attempt) == (lease.id, 2)
    await session.queue("jobs").leases.acknowledge([lease.token])  # works although the lease has ended
    assert await session.queue("jobs").size() == 0


async def test_a_message_that_is_leased_too_often_becomes_a_dead_letter(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0)))
    await jobs.put(b"1")
    for _ in range(2):
        (_,) = await jobs.leases.take(lifetime=0.2, timeout=30)
    letters: list[zq.DeadLetter[bytes]] = []
    async with asyncio.timeout(30):
        while not letters:
            assert await jobs.leases.take(timeout=0.5) == []
            letters = await jobs.dead_letters.peek()
    (dead,) = letters
    assert "2 of 2" in dead.reason


async def test_a_renewal_never_shortens_a_lease(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1")
    (lease,) = await jobs.leases.take(lifetime=60)
    await jobs.leases.renew([lease.token], lifetime=0.2)
    assert await jobs.leases.take(timeout=1) == []


async def test_a_renewal_restores_a_lease_that_ended(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1")
    (lease,) = await jobs.leases.take(lifetime=0.2)
    (redelivered,) = await jobs.leases.take(lifetime=0.2, timeout=30)
    await asyncio.sleep(0.5)
    await jobs.leases.renew([lease.token], lifetime=60)
    assert await jobs.leases.take(timeout=1) == []
    await jobs.leases.acknowledge([redelivered.token])


async def test_a_renewal_to_zero_releases_the_message_at_once(session: zq.QueueSession, other: zq.QueueSession) -> None:
    await session.queue("jobs").put(b"1")
    (lease,) = await session.queue("jobs").leases.take(lifetime=600)
    waiting = asyncio.create_task(other.queue("jobs").leases.take(lifetime=60, timeout=30))
    await asyncio.sleep(0.1)
    await session.queue("jobs").leases.renew([lease.token], lifetime=0)
    assert [lease.id for lease in await waiting] == [lease.id]


async def test_a_lease_is_acknowledged_after_another_session_has_configured_its_queue(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1")
    (lease,) = await jobs.leases.take(lifetime=600)
    await other.queue("jobs").configure(zq.QueueConfig(max_size=5))
    await jobs.leases.acknowledge([lease.token])
    assert await jobs.size() == 0


async def test_a_renewal_does_not_touch_a_message_that_a_delivery_holds(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1")
    (lease,) = await jobs.leases.take(lifetime=0.2)
    async with other.transaction() as tx:
        assert await tx.take(other.queue("jobs"), timeout=20) is not None
        await jobs.leases.renew([lease.token], lifetime=60)
        await jobs.leases.renew([lease.token], lifetime=0)
    assert await jobs.size() == 0


async def test_acknowledging_or_renewing_an_ended_message_has_no_effect_and_no_error(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1")
    (lease,) = await jobs.leases.take()
    for _ in range(2):
        await jobs.leases.acknowledge([lease.token])
        await jobs.leases.renew([lease.token])
    assert await jobs.size() == 0


@pytest.mark.parametrize(
    "settings",
    [zq.QueueConfig(), zq.QueueConfig(collapse=True), zq.QueueConfig(policy=zq.AtLeastOnce())],
    ids=["unique", "collapse", "unlimited"],
)
async def test_a_message_that_was_updated_after_its_lease_ended_is_acknowledged_renewed_and_released_by_its_token(
    on_clock: OnClock, clock: TestClock, settings: zq.QueueConfig
) -> None:
    jobs = (await on_clock()).queue("jobs")
    await jobs.configure(settings)
    await jobs.put(b"1", unique=not settings.collapse)
    (lease,) = await jobs.leases.take(lifetime=60, timeout=30)
    clock.advance(61)
    assert await jobs.update(b"2", id=lease.id)
    await jobs.leases.renew([lease.token], lifetime=600)
    assert await jobs.leases.take(timeout=0) == []
    await jobs.leases.release([lease])
    (updated,) = await jobs.leases.take(lifetime=60, timeout=30)
    assert (updated.id, updated.body, updated.attempt) == (lease.id, b"2", 2)
    await jobs.leases.acknowledge([lease.token])
    assert await jobs.size() == 0
    await jobs.leases.acknowledge([lease.token])


async def test_a_token_of_another_queue_refuses_the_whole_call(session: zq.QueueSession) -> None:
    jobs, others = session.queue("jobs"), session.queue("others")
    await jobs.put(b"1")
    await others.put(b"1")
    (good,), (foreign,) = await jobs.leases.take(), await others.leases.take()
    for bad in (foreign.token, "x", "", good.token[:-1], f"..~..~{good.token}"):
        with pytest.raises(zq.InvalidOptionError, match="not a lease of queue 'jobs'"):
            await jobs.leases.acknowledge([good.token, bad])
    assert await jobs.size() == 1
    with pytest.raises(zq.InvalidOptionError, match="not one str"):
        await jobs.leases.acknowledge(good.token)
    with pytest.raises(zq.InvalidOptionError, match="lifetime"):
        await jobs.leases.take(lifetime=0)


async def test_a_thousand_messages_are_leased_and_acknowledged_in_one_call(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put_many([b"%d" % number for number in range(1000)])
    leases = await jobs.leases.take(1000, lifetime=600)
    assert len({lease.id for lease in leases}) == 1000
    await jobs.leases.acknowledge([lease.token for lease in leases])
    assert await jobs.size() == 0


async def test_leases_of_a_cancelled_call_are_released(
    session: zq.QueueSession, other: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.session.leases.BATCH", 5)
    jobs = session.queue("jobs")
    await jobs.put_many([b"%d" % number for number in range(400)])
    taking = asyncio.create_task(jobs.leases.take(400, lifetime=600))
    await eventually(lambda: _any_leased(jobs))
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    found: set[str] = set()
    async with asyncio.timeout(30):
        while len(found) < 400:
            found |= {lease.id for lease in await other.queue("jobs").leases.take(400, lifetime=600, timeout=5)}


async def _any_leased(jobs: zq.Queue[bytes]) -> bool:
    return (await jobs.stats()).delayed > 0
