"""A minimal queue on stock aiozk, without group commit, claim dispatch or fences."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiozk

from . import wire
from .measure import BODY, Case, Stopwatch
from .ours import spread
from .raw import fill
from .wire import Connection

if TYPE_CHECKING:
    from .measure import Sample, Server

_BASE = "/benchmark-aiozk"
_ITEMS = f"{_BASE}/items"
_LOCKS = f"{_BASE}/locks"
TASKS = 64


def put(server: Server, messages: int) -> Sample:
    """Create one sequential znode per message, from this many tasks."""

    async def main() -> Sample:
        client = await _prepare(server, 0)
        try:
            with Stopwatch(server) as watch:
                await spread(TASKS, messages, lambda: client.create(f"{_ITEMS}/item-", BODY, sequential=True))
            return watch.sample(messages)
        finally:
            await _clean(server, client)

    return asyncio.run(main())


def take(server: Server, messages: int) -> Sample:
    """List once; then lock and read each item, and delete item and lock in a transaction, from this many tasks."""

    async def main() -> Sample:
        client = await _prepare(server, messages)

        async def consume() -> None:
            name = names.pop()
            lock = f"{_LOCKS}/lock-{name}"
            await client.create(lock, b"me", ephemeral=True)
            _, stat = await client.get(f"{_ITEMS}/{name}")
            commit = client.begin_transaction()
            commit.delete(f"{_ITEMS}/{name}", stat.version)
            commit.delete(lock, -1)
            await commit.commit()

        try:
            with Stopwatch(server) as watch:
                names = sorted(await client.get_children(_ITEMS), reverse=True)
                await spread(TASKS, messages, consume)
            if await client.get_children(_ITEMS):
                raise RuntimeError("items are left")
            return watch.sample(messages)
        finally:
            await _clean(server, client)

    return asyncio.run(main())


async def _prepare(server: Server, messages: int) -> aiozk.ZKClient:
    with Connection(server.first) as connection:
        connection.ensure(_ITEMS.encode())
        connection.ensure(_LOCKS.encode())
        fill(connection, wire.create(_ITEMS.encode() + b"/item-", BODY, wire.SEQUENTIAL), messages)
    client = aiozk.ZKClient(server.hosts, session_timeout=30)
    await client.start()
    return client


async def _clean(server: Server, client: aiozk.ZKClient) -> None:
    await client.close()
    with Connection(server.first) as connection:
        connection.remove(_BASE.encode())


CASES = [
    Case("stock aiozk: creates, 64 tasks", "put", 3_000, put),
    Case("stock aiozk: lock, read, commit, 64 tasks", "take", 1_500, take),
]
