"""A shared rate on a real server is never exceeded, despite lost requests, late replies and stopped listeners."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import assert_empty
from tests.faults.account import multi_of
from tests.simulation.test_rates import allowed, most_in_a_second

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiozkqueue.testing import ZooKeeperProxy
    from tests.faults.account import Account

LEASE = multi_of(b"/.rates/")
RATE = 20


@pytest.fixture
async def operator(quick: str, root: str) -> AsyncIterator[zq.QueueSession]:
    async with zq.connect(quick, root=root, session_timeout=20) as session:
        yield session


class Handled:
    """The times at which the calls of a handler began."""

    def __init__(self) -> None:
        self.begun: list[float] = []

    async def __call__(self, _: zq.Delivery[bytes]) -> None:
        self.begun.append(time.monotonic())


@pytest.mark.parametrize("fault", ["lose_before", "lose_after"])
async def test_a_lease_whose_request_or_reply_is_lost_never_raises_the_rate(
    proxy: ZooKeeperProxy, root: str, operator: zq.QueueSession, fault: str
) -> None:
    jobs, handled = operator.queue("jobs"), Handled()
    await jobs.put_many([b"job"] * 40)
    for nth in (1, 3, 5):
        getattr(proxy, fault)(LEASE, nth=nth)
    async with (
        zq.connect(proxy.hosts, root=root, session_timeout=20) as session,
        session.listener(session.queue("jobs"), handled, concurrency=8, rate=RATE),
    ):
        await assert_empty(jobs, timeout=60)
    assert most_in_a_second(handled.begun) <= allowed(RATE)


async def test_a_lease_of_a_rate_that_is_answered_too_late_is_not_used(
    proxy: ZooKeeperProxy, root: str, operator: zq.QueueSession
) -> None:
    jobs, handled = operator.queue("jobs"), Handled()
    await jobs.put_many([b"job"] * 20)
    held = proxy.hold_reply(LEASE)
    async with (
        zq.connect(proxy.hosts, root=root, session_timeout=20) as session,
        session.listener(session.queue("jobs"), handled, concurrency=8, rate=RATE),
    ):
        await held.struck()
        await asyncio.sleep(1.2)
        assert handled.begun == []
        held.release()
        await assert_empty(jobs, timeout=60)
    assert most_in_a_second(handled.begun) <= allowed(RATE)


async def test_the_slots_of_a_lease_that_is_answered_too_late_are_leased_again(
    proxy: ZooKeeperProxy, root: str, operator: zq.QueueSession
) -> None:
    jobs, handled = operator.queue("jobs"), Handled()
    await jobs.put(b"job")
    held = proxy.hold_reply(multi_of(b"/.rates/", b'"length"'))  # not the creation of the znode
    async with (
        zq.connect(proxy.hosts, root=root, session_timeout=20) as session,
        session.listener(session.queue("jobs"), handled, rate=0.01),
    ):
        await held.struck()
        await asyncio.sleep(1.2)
        assert handled.begun == []
        held.release()
        await assert_empty(jobs, timeout=40)  # not in 100 s


async def test_a_listener_that_is_stopped_during_a_lease_or_before_its_slot_ends_at_once(
    proxy: ZooKeeperProxy, root: str, operator: zq.QueueSession, account: Account
) -> None:
    jobs, handled = operator.queue("jobs"), Handled()
    await jobs.put_many([b"1", b"2", b"3"])
    async with zq.connect(proxy.hosts, root=root, session_timeout=20) as session, asyncio.timeout(60):
        held = proxy.hold_reply(LEASE)
        listener = session.listener(session.queue("jobs"), handled, rate=0.001)
        running = asyncio.create_task(listener.run())
        await held.struck()
        listener.stop()
        await asyncio.wait_for(running, 5)
        held.release()
        while await account.locks("jobs"):  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.02)

        other = session.listener(session.queue("jobs"), handled, rate=0.001, rate_name="slow")
        running = asyncio.create_task(other.run())
        while len(handled.begun) < 1:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)  # its next slot is a quarter of an hour away
        assert await account.locks("jobs") == []  # other consumers can take the messages meanwhile
        other.stop()
        await asyncio.wait_for(running, 5)
    assert len(handled.begun) == 1
    assert await jobs.size() == 2


async def test_a_corrupt_record_of_a_rate_is_replaced(
    quick: str, root: str, operator: zq.QueueSession, account: Account, caplog: pytest.LogCaptureFixture
) -> None:
    jobs, handled = operator.queue("jobs"), Handled()
    await jobs.put(b"1")
    await operator._core.zookeeper.ensure(f"{root}/.rates/jobs")
    await account.view.set(f"{root}/.rates/jobs", b"{")
    async with zq.connect(quick, root=root) as session, session.listener(session.queue("jobs"), handled, rate=5):
        await assert_empty(jobs, timeout=60)
    assert "is not the record of a rate" in caplog.text
