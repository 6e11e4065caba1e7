"""The worker's port for probes, with clients that occupy it."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from aiozkqueue.worker import Health

if TYPE_CHECKING:
    import pytest


async def ask(address: tuple[str, int], path: str = "/live") -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_idle_connections_do_not_block_probes_and_use_few_descriptors(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with AsyncExitStack() as stack:
        health = await stack.enter_async_context(Health("127.0.0.1", 0))
        host, _, port = health.address.partition(":")
        idle = []
        for _ in range(300):
            reader, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            idle.append(reader)
        async with asyncio.timeout(30):
            assert (await ask((host, int(port)))).startswith(b"HTTP/1.1 200 ")
            assert await idle[0].read() == b"", "the oldest connection was closed to make room"
            while len([reader for reader in idle if not reader.at_eof()]) > 64:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.01)
    assert not caplog.records


async def test_the_answer_to_a_probe_is_sent_without_delay() -> None:
    async with Health("127.0.0.1", 0) as health:
        assert health._server is not None
        for listening in health._server.sockets:
            assert listening.proto == socket.IPPROTO_TCP, (
                "asyncio sets TCP_NODELAY on the connections that these sockets accept"
            )
