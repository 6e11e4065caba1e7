"""Leaving a listener or loop returns only when its pending claims are released."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.schedule import Jobs, Scheduler
from tests.faults.account import CLAIM

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiozkqueue.testing import ZooKeeperProxy
    from tests.faults.account import Account

    Leave = Callable[[zq.QueueSession], Awaitable[Callable[[], Awaitable[None]]]]


@pytest.fixture
async def session(proxy: ZooKeeperProxy, root: str) -> AsyncIterator[zq.QueueSession]:
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as opened, asyncio.timeout(60):
        yield opened


@pytest.fixture
async def operator(quick: str, root: str) -> AsyncIterator[zq.QueueSession]:
    async with zq.connect(quick, root=root, session_timeout=20) as opened:
        yield opened


async def unexpected(_: zq.Delivery[bytes]) -> None:
    pytest.fail("a stopped listener delivers nothing")


async def by_listener(session: zq.QueueSession) -> Callable[[], Awaitable[None]]:
    listener = session.listener(session.queue("jobs"), unexpected)
    running = asyncio.ensure_future(listener.run())

    async def leave() -> None:
        listener.stop()
        await running

    return leave


async def by_loop(session: zq.QueueSession) -> Callable[[], Awaitable[None]]:
    deliveries = session.queue("jobs").consume()
    waiting = asyncio.ensure_future(anext(deliveries))

    async def leave() -> None:
        waiting.cancel()
        await asyncio.wait([waiting])
        await deliveries.aclose()

    return leave


@pytest.mark.parametrize("begin", [by_listener, by_loop])
async def test_purge_after_leaving_a_consumer_with_a_pending_claim_removes_all_messages(
    session: zq.QueueSession, operator: zq.QueueSession, proxy: ZooKeeperProxy, account: Account, begin: Leave
) -> None:
    jobs = operator.queue("jobs")
    await jobs.put_many([b"a", b"b"])
    fault = proxy.hold_reply(CLAIM)
    leave = await begin(session)
    await fault.struck()
    leaving = asyncio.ensure_future(leave())
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.2, fault.release)
    await leaving
    assert await jobs.purge() == 2
    assert await account.bodies("jobs") == []
    assert await account.locks("jobs") == []


@pytest.mark.parametrize("lost", ["the connection", "only the replies"])
async def test_a_scheduler_is_left_while_no_server_answers(root: str, proxy: ZooKeeperProxy, lost: str) -> None:
    async with zq.connect(proxy.hosts, root=root, session_timeout=4) as session:
        await Jobs(session).add("report", "* * * * * *", "reports", b"all")
        async with Scheduler(session):
            async with session.transaction() as tx:
                assert await tx.take(session.queue("reports"), timeout=30)
            if lost == "the connection":
                proxy.refuse()
                proxy.reset_connections()
            else:
                proxy.stall()
            await asyncio.sleep(1.2)  # the next occurrence is due
            begun = time.monotonic()
        assert time.monotonic() - begun < 30, "it waits for up to two session timeouts"
        proxy.heal()
        await proxy.listen()
