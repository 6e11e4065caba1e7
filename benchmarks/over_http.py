"""Queues over HTTP and by the direct API: batches of a hundred messages are sent, polled and acknowledged.

This process drives one server process with httpx. The client's CPU is the HTTP server's: its cost per message.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

import httpx
import psutil

from .measure import BODY, Case, Stopwatch
from .ours import ROOT, opened, remove, spread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import aiozkqueue as zq

    from .measure import Sample, Server

TOGETHER = 100
TASKS = 16
_names = (f"http-{number}" for number in count())
_BATCH = b"[" + b",".join([b'"' + b"x" * (len(BODY) - 2) + b'"'] * TOGETHER) + b"]"
_JSON = {"Content-Type": "application/json"}

Drive: TypeAlias = "Callable[[httpx.AsyncClient, str], Awaitable[int]]"


@asynccontextmanager
async def served(server: Server) -> AsyncIterator[tuple[httpx.AsyncClient, psutil.Process]]:
    """Yield a server process and its client; remove all znodes afterwards."""
    command = ["serve", "--hosts", server.hosts, "--root", ROOT, "--port", "0", "--anonymous", "queue|*|*"]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "aiozkqueue", *command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None  # noqa: S101 - it is piped
        url = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            yield client, psutil.Process(process.pid)
    finally:
        process.terminate()
        await process.wait()
        await asyncio.to_thread(remove, server)


async def send(client: httpx.AsyncClient, queue: str) -> int:
    """Send a hundred messages; return the number of requests."""
    (await client.post(f"/queue/1/{queue}/sendbatch", content=_BATCH, headers=_JSON)).raise_for_status()
    return 1


async def take(client: httpx.AsyncClient, queue: str) -> int:
    """Poll up to a hundred messages, and acknowledge them."""
    polled = await client.get(f"/queue/1/{queue}/poll", params={"limit": TOGETHER, "ttl": 600})
    ids = [message["id"] for message in polled.raise_for_status().json()]
    (await client.post(f"/queue/1/{queue}/ack", json=ids)).raise_for_status()
    return 2


def over_http(server: Server, messages: int, *, drive: Drive) -> Sample:
    """Measure batches of a hundred, from several tasks."""

    async def main() -> Sample:
        async with served(server) as (client, process):
            name, requests = next(_names), 0
            await send(client, name)
            if drive is take:
                await spread(TASKS, messages // TOGETHER, partial(send, client, name))

            async def request() -> None:
                nonlocal requests
                made = await drive(client, name)
                requests += made

            with Stopwatch(server, [process]) as watch:
                await spread(TASKS, messages // TOGETHER, request)
            seconds = watch.sample(messages).seconds
            return watch.sample(messages, requests_per_second=requests / seconds)

    return asyncio.run(main())


def put_directly(server: Server, messages: int) -> Sample:
    """Put a hundred messages at a time with the Python API."""

    async def main() -> Sample:
        async with opened(server) as (_, queue):
            with Stopwatch(server) as watch:
                await spread(TASKS, messages // TOGETHER, lambda: queue.put_many([BODY] * TOGETHER))
            return watch.sample(messages)

    return asyncio.run(main())


def lease_directly(server: Server, messages: int) -> Sample:
    """Lease and acknowledge a hundred messages at a time with the Python API."""

    async def lease_and_acknowledge(queue: zq.Queue[bytes]) -> None:
        leases = await queue.leases.take(TOGETHER, lifetime=600)
        await queue.leases.acknowledge([lease.token for lease in leases])

    async def main() -> Sample:
        async with opened(server) as (_, queue):
            await queue.put_many([BODY] * messages)
            with Stopwatch(server) as watch:
                await spread(TASKS, messages // TOGETHER, partial(lease_and_acknowledge, queue))
            return watch.sample(messages)

    return asyncio.run(main())


CASES = [
    Case("aiozkqueue over HTTP: send 100s", "http", 20_000, partial(over_http, drive=send)),
    Case("aiozkqueue: put 100s", "http", 20_000, put_directly),
    Case("aiozkqueue over HTTP: poll and acknowledge 100s", "http", 20_000, partial(over_http, drive=take)),
    Case("aiozkqueue: lease and acknowledge 100s", "http", 20_000, lease_directly),
]
