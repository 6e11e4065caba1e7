"""Ledgers of deleted queues: one is opened meanwhile, one has a successor, and one is still read by tasks."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.errors import NotFoundError
from aiozkqueue.session.internals import core_of
from tests.simulation.between import Between
from tests.spark.test_batch import put
from tests.spark.test_checkpoints import Driver
from tests.spark.test_deleted_queues import advance, created_again, deleted, fill, hand_out, prepare

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("meanwhile", [deleted, created_again])
async def test_a_stream_that_starts_while_its_queue_is_deleted_ends_or_uses_the_new_queue(
    meanwhile: Callable[[zq.Queue[bytes]], Awaitable[None]], zookeeper: str, queue_root: str
) -> None:
    async with zq.connect(zookeeper, root=queue_root) as operator:
        orders = operator.queue("orders")
        for number in range(1, 200):
            await fill(orders)
            async with zq.connect(zookeeper, root=queue_root, janitor=False) as session, asyncio.timeout(30):
                ledger = Ledger(core_of(session).handle("orders"), "spark")
                between = Between(session, number, partial(meanwhile, orders))
                try:
                    await ledger.state()
                except (NotFoundError, zq.ClaimLostError):
                    assert between.reached
                if not between.reached:
                    assert number > 5
                    return
            if await orders.exists():
                await deleted(orders)
    pytest.fail("the call never ends")


async def release_unsealed(ledger: Ledger) -> None:
    await ledger.release_unsealed()


@pytest.mark.parametrize("call", [advance, hand_out, prepare, release_unsealed])
async def test_a_driver_from_before_the_deletion_does_not_share_the_epoch_of_its_successor(
    call: Callable[[Ledger], Awaitable[object]], zookeeper: str, queue_root: str
) -> None:
    async with AsyncExitStack() as stack:
        operator = await stack.enter_async_context(zq.connect(zookeeper, root=queue_root))
        drivers: list[Ledger] = []
        for meanwhile in (fill, created_again):
            await meanwhile(operator.queue("orders"))
            session = await stack.enter_async_context(zq.connect(zookeeper, root=queue_root, janitor=False))
            ledger = Ledger(core_of(session).handle("orders"), "spark")
            assert await ledger.next_batch(-1, 4) == 0
            await ledger.prepare(0, 4)
            drivers.append(ledger)
        old, new = drivers
        assert old._epoch.check() == new._epoch.check()
        with pytest.raises(zq.ClaimLostError, match="has been taken over or released"):
            await call(old)
        assert sum(page.messages for page in await new.pages(0)) == 4
        await new.state()
        assert await new.next_batch(0, 4) == 1
        assert sum(page.messages for page in await new.pages(1)) == 4


def with_queue(options: Mapping[str, str], action: Callable[[zq.Queue[bytes]], Awaitable[object]]) -> None:
    """Have another client perform an action on the queue."""

    async def act() -> None:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            await action(session.queue("orders"))

    asyncio.run(act())


@pytest.fixture
def driver(options: dict[str, str]) -> Iterator[Driver]:
    """A driver of a queue with six messages."""
    put(options, *(b"%d" % number for number in range(6)))
    begun = Driver(options)
    yield begun
    begun.reader.stop()


@pytest.mark.parametrize("step", ["before it reads", "before its mark"])
def test_a_task_whose_queue_is_deleted_says_so(driver: Driver, options: dict[str, str], step: str) -> None:
    (share,) = driver.reader.partitions(driver.beginning, driver.latest(driver.beginning))
    rows = driver.reader.read(share)
    if step == "before its mark":
        next(rows)
    with_queue(options, deleted)
    with pytest.raises(zq.ClaimLostError, match="queue 'orders' was deleted"):
        list(rows)


def test_a_task_whose_batch_was_released_says_so(driver: Driver, options: dict[str, str]) -> None:
    async def release_ledger(orders: zq.Queue[bytes]) -> None:
        await orders.admin.release_ledger("spark")

    (share,) = driver.reader.partitions(driver.beginning, driver.latest(driver.beginning))
    with_queue(options, release_ledger)
    with pytest.raises(zq.ClaimLostError, match="no longer exists: it was acknowledged or released"):
        list(driver.reader.read(share))
