"""A FastAPI back end: the request's transaction commits before the response is sent. Needs the extra `fastapi`.

AIOZKQUEUE_HOSTS=127.0.0.1:2181 uvicorn --app-dir examples fastapi_backend:app
curl --json '{"id": 1, "article": "teapot"}' http://127.0.0.1:8000/orders
"""

from __future__ import annotations

import os

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from aiozkqueue.fastapi import SessionDep, TransactionDep, error_handlers, lifespan


class Order(BaseModel):
    """An order."""

    id: int
    article: str


app = FastAPI(
    lifespan=lifespan(os.environ.get("AIOZKQUEUE_HOSTS", "127.0.0.1:2181")), exception_handlers=error_handlers
)


@app.post("/orders", status_code=202)
async def create(order: Order, tx: TransactionDep, session: SessionDep) -> dict[str, str]:
    """Accept an order: it is in the queue when the response is sent, and not if the order is rejected."""
    message_id = tx.put(session.queue("orders", Order), order)
    tx.put("audit", f"order {order.id}".encode())
    if order.article == "unicorn":
        # The exception rolls both back.
        raise HTTPException(409, "there are none")
    return {"accepted": message_id}


@app.get("/orders/waiting")
async def waiting(session: SessionDep) -> dict[str, int]:
    """Count the waiting orders."""
    return {"waiting": await session.queue("orders").size()}
