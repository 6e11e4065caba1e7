"""Servers on real sockets, with a key that has all permissions."""

from __future__ import annotations

import asyncio
import re
import ssl
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import httpx
import pytest

import aiozkqueue as zq
from aiozkqueue.http import Keys, Settings, create_app
from aiozkqueue.http.server import server
from aiozkqueue.session.internals import core_of
from tests.integration.queue.conftest import expire, open_session, session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["expire", "open_session", "session"]

#: An empty trust store for clients without encryption: loading the system's authorities takes longer than a test.
NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
#: Longer than every limit of the server (30 s for a body, 9 s for ZooKeeper), so that a test gets the server's answer.
PATIENCE = 60


@dataclass
class Service:
    """A running server, and its client whose key has all permissions."""

    url: str
    http: httpx.AsyncClient
    key: str

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.http.get(path, **options)

    async def post(self, path: str, **options: Any) -> httpx.Response:
        return await self.http.post(path, **options)

    async def poll(self, queue: str, **parameters: Any) -> list[dict[str, Any]]:
        answer = await self.get(f"/queue/1/{queue}/poll", params=parameters)
        assert answer.status_code == 200, answer.text
        polled: list[dict[str, Any]] = answer.json()
        return polled


class Starter(Protocol):
    async def __call__(self, settings: Settings | None = None, *, hosts: str | None = None) -> Service: ...


@asynccontextmanager
async def serving(hosts: str, root: str, settings: Settings) -> AsyncIterator[str]:
    """Run a server on a free port; yield its address."""
    app = create_app(lambda: zq.connect(hosts, root=root, session_timeout=20), settings)
    running = server(app, host="127.0.0.1", port=0)
    task = asyncio.create_task(running._serve())  # serve() would take over the signals of the test run
    try:
        async with asyncio.timeout(60):
            while not running.started and not task.done():  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.01)
        if task.done():
            await task
        port = running.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        running.should_exit = True
        await task


def proof_in(page: httpx.Response) -> str:
    """Return the value with which a form of this page is accepted."""
    found = re.search(r'name="proof" value="([0-9a-f]{64})"', page.text)
    assert found is not None
    return found[1]


async def polled(session: zq.QueueSession) -> bool:
    """Return whether a poll waits for messages of the queue ``q``."""
    return (await session.queue("q").stats()).consumers == 1


@pytest.fixture
def frequent_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server samples its queues twice a second, so that a test does not wait ten seconds for the next sample."""
    monkeypatch.setattr("aiozkqueue.sampling.EVERY", 0.5)


@pytest.fixture
async def key(session: zq.QueueSession) -> str:
    """A key with all permissions."""
    return await Keys(core_of(session)).create("operator", ["queue|*|*"])


@pytest.fixture
async def start(zookeeper: str, queue_root: str, key: str) -> AsyncIterator[Starter]:
    async with AsyncExitStack() as stack:

        async def started(settings: Settings | None = None, *, hosts: str | None = None) -> Service:
            url = await stack.enter_async_context(serving(hosts or zookeeper, queue_root, settings or Settings()))
            client = httpx.AsyncClient(base_url=url, headers={"X-BV-API-Key": key}, timeout=PATIENCE, verify=NOBODY)
            return Service(url, await stack.enter_async_context(client), key)

        yield started


@pytest.fixture
async def service(start: Starter) -> Service:
    return await start()
