"""The queues of the shop, and the handlers that the worker runs.

A bill and a parcel are put by the commit that removes their order, so an order has one of each, whatever happens to the
worker or to ZooKeeper. With an OpenTelemetry provider in the process, each order is one trace.
"""

from __future__ import annotations

import logging
import os

from pydantic import BaseModel

import aiozkqueue as zq

log = logging.getLogger(__name__)


class Order(BaseModel):
    """An order of a customer."""

    id: int
    article: str
    cents: int


class Bill(BaseModel):
    """A bill to send."""

    order: int
    cents: int


class Parcel(BaseModel):
    """A parcel to pack."""

    order: int
    article: str


app = zq.App(  # the web service connects with the variables that the worker's command reads
    os.environ.get("AIOZKQUEUE_HOSTS", "127.0.0.1:2181"),
    root=os.environ.get("AIOZKQUEUE_ROOT", "/zms"),
    auth=zq.Auth.parse_all(os.environ.get("AIOZKQUEUE_AUTH", "")),
)
orders = app.queue("orders", Order, policy=zq.ConsumeTimes(3, backoff=zq.Exponential(initial=0.2)))
bills = app.queue("bills", Bill)
parcels = app.queue("parcels", Parcel)


class OutOfStockError(Exception):
    """The article comes back later."""


async def alarm(letter: zq.DeadLetter[Order], _: BaseException | None) -> None:
    """Tell the people on call."""
    log.error("order %d was given up: %s", letter.value.id, letter.reason)


@app.listener(orders, concurrency=8, timeout=30, on_dead=alarm)
async def bill(delivery: zq.Delivery[Order]) -> None:
    """Bill an order, and have it packed."""
    order = delivery.value
    if order.cents <= 0:
        raise zq.Reject("nothing to pay")
    if order.article == "rare teapot" and delivery.attempt == 1:
        raise OutOfStockError(order.article)
    delivery.put(bills, Bill(order=order.id, cents=order.cents))
    delivery.put(parcels, Parcel(order=order.id, article=order.article))


@app.cron("0 3 * * *", zone="Europe/Berlin")
async def report(delivery: zq.Delivery[bytes]) -> None:
    """Log the figures of the day."""
    log.info("%s: %d orders wait", delivery.headers["occurrence"], await orders.size())
