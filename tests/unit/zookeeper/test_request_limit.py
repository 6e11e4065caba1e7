"""The search for a server's request limit ends, whatever the server does meanwhile."""

from __future__ import annotations

import asyncio
import struct

from aiozkqueue.zookeeper.hosts import Server
from aiozkqueue.zookeeper.request_limit import SMALL, smaller_limit


async def test_the_search_ends_without_a_result_if_the_server_begins_to_close_every_connection() -> None:
    """As at ``maxClientCnxns``. Otherwise a session that reconnects would search forever."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        (length,) = struct.unpack("!i", await reader.readexactly(4))
        if length <= SMALL and connections <= 2:
            await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(10):
            assert await smaller_limit("127.0.0.1", Server("127.0.0.1", port), 1_000_000, None) is None
    assert connections > 2
