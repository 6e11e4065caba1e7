"""The figure of all messages ever put does not fall: the dashboard and alerts compute rates from two readings."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from kazoo.security import make_acl

from aiozkqueue.layout import HOUR
from aiozkqueue.sampling import Sampler, rates_between
from tests.integration.queue.conftest import eventually, take_one

if TYPE_CHECKING:
    import aiozkqueue as zq
    from tests.observer import Observer


async def past_hours(queue: zq.Queue[bytes], view: Observer, root: str, *numbers: int) -> str:
    """Create past hours, in each of which this number of messages was put and removed; return their parent."""
    await queue.put(b"far", delay=36_000)
    later = f"{root}/{queue.name}/later"
    far = max(await view.children(later))
    for back, number in enumerate(numbers, 20):
        hour = int(far) - back
        names = [f"{later}/{hour}/item-t{hour * HOUR}-i{index}-000000000{index}" for index in range(number)]
        await view.create(f"{later}/{hour}")
        await view.create_many(names)
        for name in names:
            await view.delete(name)
    return later


async def put_and_removed(queue: zq.Queue[bytes]) -> tuple[int, int]:
    stats = await queue.stats()
    return stats.put, stats.removed


async def test_clean_up_of_past_hours_keeps_the_number_of_messages_put(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs, sampler = session.queue("jobs"), Sampler(session)
    later = await past_hours(jobs, server_view, queue_root, 3, 4)
    assert await put_and_removed(jobs) == (8, 7)
    await sampler.sample_all(0.0)
    before = sampler.latest["jobs"]
    (cleaned,) = await session.admin.clean("jobs")
    assert (cleaned.hours, len(await server_view.children(later))) == (2, 1)
    assert await put_and_removed(jobs) == (8, 7)
    await jobs.put(b"now")
    await sampler.sample_all(0.0)
    after = sampler.latest["jobs"]
    rates = rates_between(before, after)
    assert rates.put * (after.at - before.at) == pytest.approx(1)


async def test_the_numbers_of_hours_removed_one_after_the_other_add_up(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    for number in range(1, 4):
        later = await past_hours(jobs := session.queue("jobs"), server_view, queue_root, number)
        await session.admin.clean("jobs")
        assert len(await server_view.children(later)) == 1
    assert await put_and_removed(jobs) == (3 + 6, 6)


async def test_a_consumer_that_removes_a_past_hour_keeps_the_number_of_messages_put(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    later = await past_hours(jobs, server_view, queue_root, 5)
    await jobs.put(b"now")
    assert (await take_one(session)).value == b"now"

    async def removed() -> bool:
        async with session.transaction() as tx:
            await tx.take(jobs, timeout=0)
        return len(await server_view.children(later)) == 1

    await eventually(removed)
    assert await put_and_removed(jobs) == (7, 6)


async def test_sessions_that_clean_concurrently_count_each_hour_once(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    later = await past_hours(jobs, server_view, queue_root, *range(1, 9))
    await asyncio.gather(*(client.admin.clean("jobs") for client in (session, other) * 3))
    assert len(await server_view.children(later)) == 1
    assert await put_and_removed(jobs) == (1 + 36, 36)


async def test_past_hours_are_removed_for_a_user_who_may_not_count_them(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    later = await past_hours(jobs, server_view, queue_root, 3)
    allowed = [make_acl("world", "anyone", read=True, create=True, delete=True)]
    await server_view.set_acl(later, allowed)
    (cleaned,) = await session.admin.clean("jobs")
    assert (cleaned.hours, len(await server_view.children(later))) == (1, 1)
    assert await put_and_removed(jobs) == (1, 0)
