"""Tests of the shop: a handler without a server, and the whole application in memory."""

from __future__ import annotations

import aiozkqueue as zq
from aiozkqueue import testing
from aiozkqueue.testing import assert_dead_lettered, assert_empty, assert_put

from .queues import Bill, Order, Parcel, app, bill, bills, orders, parcels


async def test_an_order_is_billed_and_packed() -> None:
    delivery = testing.delivery(Order(id=1, article="teapot", cents=990))
    await bill(delivery)
    assert [put.value for put in delivery.puts] == [Bill(order=1, cents=990), Parcel(order=1, article="teapot")]


async def test_the_shop_works_in_memory(queue_session: zq.QueueSession) -> None:
    async with app.serve(queue_session):
        await orders.put(Order(id=1, article="rare teapot", cents=990))
        await orders.put(Order(id=2, article="gift", cents=0))
        await assert_put(parcels, Parcel(order=1, article="rare teapot"), timeout=30)
        await assert_dead_lettered(orders, Order(id=2, article="gift", cents=0), reason="nothing to pay", timeout=30)
        await assert_empty(orders, timeout=30)
        assert await bills.size() == 1
