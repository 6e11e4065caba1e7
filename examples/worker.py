"""A worker: takes orders forever, with up to five attempts each.

AIOZKQUEUE_HOSTS=127.0.0.1:2181 python examples/worker.py
aiozkqueue put orders '{"id": 1, "article": "teapot"}'
"""

from __future__ import annotations

import asyncio
import logging
import os

from pydantic import BaseModel

import aiozkqueue as zq

log = logging.getLogger("worker")


class Order(BaseModel):
    """An order."""

    id: int
    article: str


class OutOfStockError(Exception):
    """The article is out of stock; a retry may succeed."""


async def ship(order: Order) -> None:
    """Stand-in for the work."""
    if order.article == "unicorn":
        raise OutOfStockError(order.article)
    print(f"shipped {order.article}", flush=True)


async def main() -> None:
    """Consume until interrupted; unfinished deliveries are then rolled back for other workers."""
    async with zq.connect(os.environ.get("AIOZKQUEUE_HOSTS", "127.0.0.1:2181")) as session:
        orders = session.queue("orders", Order, policy=zq.ConsumeTimes(5, backoff=zq.Exponential(initial=0.1)))
        async with orders.consume() as deliveries:
            async for delivery in deliveries:
                try:
                    async with delivery:
                        await ship(delivery.value)
                except (OutOfStockError, zq.NotCommittedError) as error:
                    log.warning("%s is redelivered: %r", delivery.id, error)


if __name__ == "__main__":
    asyncio.run(main())
