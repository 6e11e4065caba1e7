"""The times at which obstructed messages are tried again, and locks and delays that cannot be removed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kazoo.security import OPEN_ACL_UNSAFE

import aiozkqueue as zq
from aiozkqueue.testing import TestClock
from tests.integration.queue.conftest import eventually, take_one
from tests.integration.queue.test_obstacles import item_of, set_acl

if TYPE_CHECKING:
    from tests.integration.queue.conftest import Opener
    from tests.observer import Observer


async def test_a_message_that_cannot_be_removed_is_redelivered_after_1_8_64_512_s_and_then_hourly(
    open_session: Opener, server_view: Observer, queue_root: str
) -> None:
    clock = TestClock()
    session = await open_session(clock=clock)
    jobs = session.queue("jobs")
    await jobs.put(b"obstructed")
    await server_view.create(f"{await item_of(server_view, queue_root)}/child")
    calls: list[int] = []
    now = session._runtime.server_clock.now

    async def handler(_: zq.Delivery[bytes]) -> None:
        calls.append(now())

    async def held(number: int) -> bool:
        """Return whether the handler was called this many times and the message is delayed again."""
        return len(calls) == number and len(await server_view.children(f"{queue_root}/jobs/due")) == 1

    async with session.listener(jobs, handler):
        for number, wait in enumerate([1, 8, 64, 512, 3600, 3600], 1):
            await eventually(lambda number=number: held(number))  # type: ignore[misc]
            (due,) = await server_view.children(f"{queue_root}/jobs/due")
            end = int(due.split("-")[0])
            assert calls[-1] <= end - 1000 * wait <= now()
            clock.advance(max(0, end - now()) / 1000)


async def test_a_message_that_may_not_be_read_is_tried_again_after_five_minutes(
    open_session: Opener, server_view: Observer, queue_root: str
) -> None:
    clock = TestClock()
    session = await open_session(clock=clock)
    jobs = session.queue("jobs")
    await jobs.put(b"sealed")
    item = await item_of(server_view, queue_root)
    await set_acl(server_view, item, readable=False)
    taking = asyncio.create_task(take_one(session, timeout=3000))
    await jobs.put(b"sound")
    assert (await taking).body == b"sound"
    taking = asyncio.create_task(take_one(session, timeout=3000))
    await server_view.authenticate("somebody", "else")
    await server_view.set_acl(item, OPEN_ACL_UNSAFE)
    assert not taking.done()
    clock.advance(300)
    assert (await asyncio.wait_for(taking, 30)).body == b"sealed"


async def test_a_znode_below_a_timed_lock_keeps_its_message_until_it_is_deleted(
    open_session: Opener, server_view: Observer, queue_root: str
) -> None:
    clock = TestClock()
    session = await open_session(clock=clock)
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(60)))
    message = await jobs.put(b"1")
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(jobs, timeout=30)
        await tx.rollback()
    child = f"{queue_root}/jobs/locks/lock-{message}/child"
    await server_view.create(child)
    clock.advance(100)
    await jobs.put(b"2")
    assert (await take_one(session)).body == b"2"
    async with session.transaction() as tx:
        assert await tx.take(jobs) is None
    clock.advance(100)
    findings = (await session.admin.diagnose("jobs")).findings
    assert "1 message not released" in " ".join(finding.text for finding in findings if finding.subject == "jobs")
    await server_view.delete(child)
    taking = asyncio.create_task(take_one(session, timeout=3000))
    for _ in range(30):
        clock.advance(60)
        await asyncio.wait([taking], timeout=1)
        if taking.done():
            break
    assert (await taking).body == b"1"
