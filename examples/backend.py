"""A FastAPI back end: the request's transaction commits before the response is sent. Needs the extra `http`.

AIOZKQUEUE_HOSTS=127.0.0.1:2181 uvicorn --app-dir examples backend:app
curl --json '{"id": 1, "article": "teapot"}' http://127.0.0.1:8000/orders
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, TypedDict

from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel

import aiozkqueue as zq


class Order(BaseModel):
    """What is ordered."""

    id: int
    article: str


class State(TypedDict):
    """What a request finds in ``request.state``."""

    session: zq.QueueSession


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[State]:
    """One session for the whole application."""
    async with zq.connect(os.environ.get("AIOZKQUEUE_HOSTS", "127.0.0.1:2181")) as session:
        yield {"session": session}


async def transaction(request: Request) -> AsyncIterator[zq.Transaction]:
    """A transaction for one request."""
    session: zq.QueueSession = request.state.session
    async with session.begin() as tx:
        yield tx


# The scope matters: by default a dependency ends after the response has been sent, and so would the commit.
Tx = Annotated[zq.Transaction, Depends(transaction, scope="function")]

app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def create(order: Order, tx: Tx) -> dict[str, str]:
    """Accept an order: in the queue when the answer is sent, and not when it is refused."""
    message_id = tx.put("orders", order.model_dump_json().encode())
    tx.put("audit", f"order {order.id}".encode())
    if order.article == "unicorn":
        # The exception rolls both back.
        raise HTTPException(409, "there are none")
    return {"accepted": message_id}


@app.get("/orders/waiting")
async def waiting(request: Request) -> dict[str, int]:
    """How many orders wait."""
    session: zq.QueueSession = request.state.session
    return {"waiting": await session.queue("orders").size()}
