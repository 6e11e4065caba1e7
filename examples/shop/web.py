"""The shop's web service: an accepted order is stored when the response is sent. `/metrics` is for Prometheus."""

from __future__ import annotations

from fastapi import FastAPI, Response

from aiozkqueue.fastapi import SessionDep, TransactionDep, error_handlers, lifespan
from aiozkqueue.metrics import collector

from .queues import Order, app, orders

web = FastAPI(lifespan=lifespan(app), exception_handlers=error_handlers)


@web.post("/orders", status_code=202)
async def create(order: Order, tx: TransactionDep) -> dict[str, str]:
    """Accept an order. A client that repeats the same order gets a conflict while the first one waits."""
    return {"accepted": tx.put(orders, order, key=str(order.id), unique=True)}


@web.get("/orders/{message_id}")
async def state(message_id: str) -> dict[str, str]:
    """Tell what has become of an order."""
    return {"status": (await orders.state(message_id)).status.value}


@web.get("/metrics")
async def metrics(session: SessionDep) -> Response:
    """Return the metrics of the queues."""
    collected = collector(session)
    return Response(await collected.text(), media_type=collected.content_type)
