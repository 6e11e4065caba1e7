"""The messages of a batch that is done are removed while tasks read the next one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import Opcode, ZooKeeperProxy
from tests.spark.test_batch import put
from tests.spark.test_checkpoints import Driver, stored

if TYPE_CHECKING:
    from aiozkqueue.testing import Request

pytestmark = pytest.mark.timeout(120)


def removes_first_batch(request: Request) -> bool:
    return request.opcode == Opcode.MULTI and b"/batch-0000000000/000000" in request.body


async def test_the_next_batch_does_not_wait_until_the_messages_of_the_one_before_are_removed(
    zookeeper: str, options: dict[str, str]
) -> None:
    await asyncio.to_thread(put, options, b"1", b"2", b"3", b"4")
    async with ZooKeeperProxy(zookeeper) as proxy:
        driver = await asyncio.to_thread(Driver, {**options, "hosts": proxy.hosts})
        try:
            first = await asyncio.to_thread(driver.latest, driver.beginning, 2)
            assert await asyncio.to_thread(driver.read, driver.beginning, first) == [b"1", b"2"]
            removal = proxy.hold_request(removes_first_batch)
            second = await asyncio.to_thread(driver.latest, first, 2)
            await removal.struck(60)
            assert second != first
            assert sorted(await asyncio.to_thread(stored, options)) == [b"1", b"2", b"3", b"4"]
            await asyncio.to_thread(driver.reader.commit, first)  # it is done as far as Spark is concerned
            removal.release()
            assert await asyncio.to_thread(driver.read, first, second) == [b"3", b"4"]
            assert await asyncio.to_thread(driver.latest, second) == second
        finally:
            await asyncio.to_thread(driver.reader.stop)
    assert await asyncio.to_thread(stored, options) == {}


async def test_a_query_that_stops_removes_the_messages_that_it_has_acknowledged(
    zookeeper: str, options: dict[str, str]
) -> None:
    await asyncio.to_thread(put, options, b"1", b"2", b"3", b"4")
    async with ZooKeeperProxy(zookeeper) as proxy:
        driver = await asyncio.to_thread(Driver, {**options, "hosts": proxy.hosts})
        first = await asyncio.to_thread(driver.latest, driver.beginning, 2)
        await asyncio.to_thread(driver.read, driver.beginning, first)
        removal = proxy.hold_request(removes_first_batch)
        await asyncio.to_thread(driver.latest, first, 2)
        await removal.struck(60)
        stopping = asyncio.ensure_future(asyncio.to_thread(driver.reader.stop))
        removal.release()
        await stopping
    assert sorted(await asyncio.to_thread(stored, options)) == [b"3", b"4"]


async def test_the_next_call_of_a_fenced_driver_raises_the_error_of_its_removal(
    zookeeper: str, options: dict[str, str]
) -> None:
    await asyncio.to_thread(put, options, b"1", b"2", b"3", b"4")
    async with ZooKeeperProxy(zookeeper) as proxy:
        zombie = await asyncio.to_thread(Driver, {**options, "hosts": proxy.hosts})
        successor = await asyncio.to_thread(Driver, options)
        try:
            first = await asyncio.to_thread(zombie.latest, zombie.beginning, 2)
            await asyncio.to_thread(zombie.read, zombie.beginning, first)
            removal = proxy.hold_request(removes_first_batch)
            second = await asyncio.to_thread(zombie.latest, first, 2)
            await removal.struck(60)
            assert await asyncio.to_thread(successor.read, first, second) == [b"3", b"4"]
            assert await asyncio.to_thread(successor.latest, second) == second
            removal.release()
            with pytest.raises(zq.ClaimLostError):
                await asyncio.to_thread(zombie.latest, second)
        finally:
            await asyncio.to_thread(zombie.reader.stop)
            await asyncio.to_thread(successor.reader.stop)
    assert await asyncio.to_thread(stored, options) == {}
