"""A bus: each event is posted once, and every group of subscribers handles it independently.

AIOZKQUEUE_HOSTS=127.0.0.1:2181 python examples/events.py billing
AIOZKQUEUE_HOSTS=127.0.0.1:2181 python examples/events.py shipping
AIOZKQUEUE_HOSTS=127.0.0.1:2181 python examples/events.py post 1 teapot

A group gets every event posted after it joined, even while none of its processes runs. One process of the group handles
each event. A failed subscriber is called again, without the others.
"""

from __future__ import annotations

import asyncio
import os
import sys

from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue.bus import Bus


class ShopEvent(BaseModel):
    """An event of the shop."""

    order: int


class OrderPlaced(ShopEvent):
    """A customer has placed an order."""

    article: str


class OrderCancelled(ShopEvent):
    """A customer has cancelled an order."""


async def bill(event: OrderPlaced) -> None:
    """Stand-in for sending an invoice."""
    print(f"billing: invoice for order {event.order}", flush=True)


async def ship(event: OrderPlaced) -> None:
    """Stand-in for sending a parcel."""
    print(f"shipping: {event.article} for order {event.order}", flush=True)


async def note(event: ShopEvent) -> None:
    """Handle events of every subclass."""
    print(f"shipping: {type(event).__name__} {event.order} noted", flush=True)


async def main(role: str, *arguments: str) -> None:
    """Post an event, or serve one group until SIGTERM."""
    async with zq.connect(os.environ.get("AIOZKQUEUE_HOSTS", "127.0.0.1:2181")) as session:
        bus = Bus(session, "shop", ShopEvent)
        if role == "post":
            number, article = arguments
            await bus.post(OrderPlaced(order=int(number), article=article))
            return
        if role == "billing":
            bus.subscribe(OrderPlaced, bill, group="billing")
        else:
            bus.subscribe(OrderPlaced, ship, group="shipping")
            bus.subscribe(ShopEvent, note, group="shipping")
        await bus.join(role)
        print(f"{role}: joined", flush=True)
        await zq.run(bus.listener(group=role, concurrency=4))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
