"""The search for the request limit of a server ends, whatever the server does meanwhile."""

from __future__ import annotations

import asyncio
import struct
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.zookeeper.hosts import Server
from aiozkqueue.zookeeper.request_limit import SMALL, smaller_limit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


@asynccontextmanager
async def serving(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """Run a server that calls this function for each connection and then closes it; at the end, all are closed."""
    handlers: set[asyncio.Task[None] | None] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        try:
            await serve(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            await asyncio.wait([handler for handler in handlers if handler is not None], timeout=10)


async def test_the_search_ends_without_a_result_if_the_server_begins_to_close_every_connection() -> None:
    """ZooKeeper does this at ``maxClientCnxns``. Otherwise a reconnecting session would search forever."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        (length,) = struct.unpack("!i", await reader.readexactly(4))
        if length <= SMALL and connections <= 2:
            await reader.read()

    async with serving(serve) as port, asyncio.timeout(10):
        assert await smaller_limit("127.0.0.1", Server("127.0.0.1", port), 1_000_000, None) is None
    assert connections > 2


@asynccontextmanager
async def crowded(limit: int, places: int) -> AsyncIterator[int]:
    """Run a server that closes each connection beyond this number at once, as ZooKeeper does at ``maxClientCnxns``."""
    taken = 0

    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        nonlocal taken
        if taken < places:
            taken += 1
            with suppress(OSError, asyncio.IncompleteReadError):
                (length,) = struct.unpack("!i", await reader.readexactly(4))
                if length <= limit:
                    await reader.read()
            taken -= 1

    async with serving(serve) as port:
        yield port


@pytest.mark.parametrize("places", [0, 1, 2, 3])
async def test_a_server_without_room_for_more_connections_does_not_seem_to_have_a_small_limit(places: int) -> None:
    async with crowded(2_000_000, places) as port, asyncio.timeout(20):
        assert await smaller_limit("127.0.0.1", Server("127.0.0.1", port), 1_000_000, None) is None


@pytest.mark.parametrize("places", [2, 3, 5])
async def test_the_limit_of_a_server_with_little_room_for_more_connections_is_not_measured_as_too_small(
    places: int,
) -> None:
    async with crowded(100_000, places) as port, asyncio.timeout(40):
        limit = await smaller_limit("127.0.0.1", Server("127.0.0.1", port), 1_000_000, None)
    assert limit is None or limit >= 100_000  # larger if this machine was too slow


async def test_the_search_ends_if_the_server_takes_long_to_close_a_connection() -> None:
    """The server is busy, and closes the connection after the quick attempts have ended."""

    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            (length,) = struct.unpack("!i", await reader.readexactly(4))
            if length <= 100_000:
                await reader.read()
            await asyncio.sleep(0.15)

    async with serving(serve) as port, asyncio.timeout(30):
        limit = await smaller_limit("127.0.0.1", Server("127.0.0.1", port), 1_000_000, None)
    assert limit is None or limit >= 100_000  # larger if this machine was too slow
