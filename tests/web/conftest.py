"""Applications whose requests have transactions, called without a server or through a real one."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import httpx
import pytest
import uvicorn

from aiozkqueue.fastapi import get_session
from tests.integration.queue.conftest import locks, open_session, session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastapi import FastAPI

    import aiozkqueue as zq

__all__ = ["locks", "open_session", "session"]


class Calling(Protocol):
    async def __call__(self, app: FastAPI, *, session: zq.QueueSession | None = None) -> httpx.AsyncClient: ...


@pytest.fixture
async def calling(session: zq.QueueSession) -> AsyncIterator[Calling]:
    """A client of an application in this process and on this session.

    It receives an error of the application as a 500.
    """
    async with AsyncExitStack() as stack:
        own = session

        async def client_of(app: FastAPI, *, session: zq.QueueSession | None = None) -> httpx.AsyncClient:
            app.dependency_overrides[get_session] = lambda: session or own
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            return await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://app"))

        yield client_of


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[tuple[str, int]]:
    """Run an application with uvicorn, including its lifespan; yield host and port."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
    task = asyncio.create_task(server._serve([listening]))  # serve() would handle the signals of the test run
    try:
        async with asyncio.timeout(30):
            while not server.started and not task.done():  # noqa: ASYNC110 - uvicorn reports it only by this flag
                await asyncio.sleep(0.01)
        if task.done():
            await task
        yield listening.getsockname()
    finally:
        server.should_exit = True
        await task
        listening.close()
