"""Queues over HTTP in your own application: the service below a path, next to other routes.

AIOZKQUEUE_HOSTS=127.0.0.1:2181 PORT=8000 python examples/http_service.py
curl http://127.0.0.1:8000/hello
curl http://127.0.0.1:8000/queues/ping
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI

import aiozkqueue as zq
from aiozkqueue.http import Settings, create_app

HOSTS = os.environ.get("AIOZKQUEUE_HOSTS", "127.0.0.1:2181")

queues = create_app(lambda: zq.connect(HOSTS), Settings(anonymous=("queue|*|public*",)))


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Run the service as long as the application."""
    async with queues.router.lifespan_context(queues):
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/queues", queues)


@app.get("/hello")
async def hello() -> dict[str, str]:
    """A route of the application."""
    return {"hello": "world"}


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")), access_log=False)
