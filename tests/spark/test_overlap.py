"""While tasks read a batch, the messages of the one before are removed, and the one after is prepared."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import Opcode, ZooKeeperProxy
from tests.integration.queue.conftest import eventually
from tests.spark.test_batch import put
from tests.spark.test_checkpoints import Driver, stored
from tests.spark.test_stream import left

if TYPE_CHECKING:
    from aiozkqueue.testing import Request

pytestmark = pytest.mark.timeout(120)


def removes_first_batch(request: Request) -> bool:
    return request.opcode == Opcode.MULTI and b"/batch-0000000000/000000" in request.body


def prepares_second_batch(request: Request) -> bool:
    return request.opcode == Opcode.MULTI and b"/batch-0000000001/000000" in request.body


async def claimed(options: dict[str, str], number: int) -> None:
    """Wait until this many messages are held."""

    async def is_so() -> bool:
        return (await asyncio.to_thread(left, options))[1] == number

    await eventually(is_so, 60)


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
            await asyncio.to_thread(driver.reader.commit, first)  # Spark has committed the batch
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


async def test_the_next_batch_is_prepared_while_tasks_read_a_full_one(options: dict[str, str]) -> None:
    await asyncio.to_thread(put, options, b"1", b"2", b"3", b"4", b"5", b"6")
    driver = await asyncio.to_thread(Driver, options)
    try:
        first = await asyncio.to_thread(driver.latest, driver.beginning, 2)
        await claimed(options, 2)
        shares = await asyncio.to_thread(driver.reader.partitions, driver.beginning, first)
        await claimed(options, 4)
        assert (
            await asyncio.to_thread(driver.reader.partitions, driver.beginning, first) == shares
        )  # the message is found by another scan
        assert await asyncio.to_thread(driver.read_shares, shares) == [b"1", b"2"]
        second = await asyncio.to_thread(driver.latest, first, 2)
        assert await asyncio.to_thread(driver.read, first, second) == [b"3", b"4"]
        third = await asyncio.to_thread(driver.latest, second, 2)
        assert await asyncio.to_thread(driver.read, second, third) == [b"5", b"6"]
        assert await asyncio.to_thread(driver.latest, third, 2) == third
    finally:
        await asyncio.to_thread(driver.reader.stop)
    assert await asyncio.to_thread(stored, options) == {}


async def test_nothing_is_prepared_while_tasks_read_a_batch_that_is_not_full(options: dict[str, str]) -> None:
    await asyncio.to_thread(put, options, b"1", b"2")
    driver = await asyncio.to_thread(Driver, options)
    try:
        first = await asyncio.to_thread(driver.latest, driver.beginning, 3)
        shares = await asyncio.to_thread(driver.reader.partitions, driver.beginning, first)
        await asyncio.to_thread(put, options, b"3")
        assert await asyncio.to_thread(driver.read_shares, shares) == [b"1", b"2"]
        await claimed(options, 2)
    finally:
        await asyncio.to_thread(driver.reader.stop)


async def test_the_next_offset_waits_until_its_batch_is_prepared(zookeeper: str, options: dict[str, str]) -> None:
    await asyncio.to_thread(put, options, b"1", b"2", b"3", b"4")
    async with ZooKeeperProxy(zookeeper) as proxy:
        driver = await asyncio.to_thread(Driver, {**options, "hosts": proxy.hosts})
        try:
            first = await asyncio.to_thread(driver.latest, driver.beginning, 2)
            preparation = proxy.hold_request(prepares_second_batch)
            assert await asyncio.to_thread(driver.read, driver.beginning, first) == [b"1", b"2"]
            await preparation.struck(60)
            asking = asyncio.ensure_future(asyncio.to_thread(driver.latest, first, 2))
            done, _ = await asyncio.wait([asking], timeout=0.5)
            assert not done
            preparation.release()
            assert await asyncio.to_thread(driver.read, first, await asking) == [b"3", b"4"]
        finally:
            await asyncio.to_thread(driver.reader.stop)


async def test_a_query_that_stops_returns_the_prepared_batch_and_keeps_the_batch_that_spark_knows(
    options: dict[str, str],
) -> None:
    await asyncio.to_thread(put, options, b"1", b"2", b"3", b"4", b"5", b"6")
    driver = await asyncio.to_thread(Driver, options)
    first = await asyncio.to_thread(driver.latest, driver.beginning, 2)
    await asyncio.to_thread(driver.reader.partitions, driver.beginning, first)
    await asyncio.to_thread(driver.reader.stop)  # during its preparation or after it
    assert (await asyncio.to_thread(left, options))[1] == 2
    again = await asyncio.to_thread(Driver, options)
    try:
        assert await asyncio.to_thread(again.read, driver.beginning, first) == [b"1", b"2"]
    finally:
        await asyncio.to_thread(again.reader.stop)


async def test_a_driver_that_is_fenced_during_a_preparation_raises_its_error_and_stops(
    zookeeper: str, options: dict[str, str]
) -> None:
    await asyncio.to_thread(put, options, b"1", b"2", b"3", b"4")
    async with ZooKeeperProxy(zookeeper) as proxy:
        zombie = await asyncio.to_thread(Driver, {**options, "hosts": proxy.hosts})
        successor = await asyncio.to_thread(Driver, options)
        try:
            first = await asyncio.to_thread(zombie.latest, zombie.beginning, 2)
            preparation = proxy.hold_request(prepares_second_batch)
            await asyncio.to_thread(zombie.read, zombie.beginning, first)
            await preparation.struck(60)
            assert await asyncio.to_thread(successor.read, zombie.beginning, first) == [b"1", b"2"]
            preparation.release()
            with pytest.raises(zq.ClaimLostError):
                await asyncio.to_thread(zombie.latest, first, 2)
            await asyncio.to_thread(zombie.reader.stop)
            second = await asyncio.to_thread(successor.latest, first, 2)
            assert await asyncio.to_thread(successor.read, first, second) == [b"3", b"4"]
        finally:
            await asyncio.to_thread(zombie.reader.stop)
            await asyncio.to_thread(successor.reader.stop)
