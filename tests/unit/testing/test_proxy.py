"""The effect of each fault of the proxy on plain sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.testing import Direction, FaultProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo:
    """A server that sends back the bytes that it receives, and stores them."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.ended = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                self.received += data
                writer.write(data)
        self.ended.set()
        writer.close()

    async def until(self, received: bytes) -> None:
        async with asyncio.timeout(30):
            while self.received != received:  # noqa: ASYNC110 -- tests only
                await asyncio.sleep(0.005)


@pytest.fixture
async def echo() -> AsyncIterator[tuple[Echo, FaultProxy]]:
    server = Echo()
    async with await asyncio.start_server(server.serve, "127.0.0.1") as listener:
        host, port = listener.sockets[0].getsockname()
        async with FaultProxy(f"{host}:{port}") as proxy:
            yield server, proxy
        listener.close()


@contextlib.asynccontextmanager
async def connected(proxy: FaultProxy) -> AsyncIterator[Streams]:
    host, port = proxy.hosts.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def exchange(streams: Streams, data: bytes) -> bytes:
    streams[1].write(data)
    async with asyncio.timeout(30):
        return await streams[0].readexactly(len(data))


async def silent(reader: asyncio.StreamReader, seconds: float = 0.1) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await reader.read(1)
    except TimeoutError:
        return True
    return False


async def test_every_byte_passes_unchanged_without_faults(echo: tuple[Echo, FaultProxy]) -> None:
    _, proxy = echo
    async with connected(proxy) as streams:
        blob = bytes(range(256)) * 4096
        writing = asyncio.create_task(exchange(streams, blob))
        assert await writing == blob
        assert (proxy.accepted, proxy.connections) == (1, 1)


async def test_the_proxy_forwards_the_end_of_either_stream(echo: tuple[Echo, FaultProxy]) -> None:
    server, proxy = echo
    async with connected(proxy) as (reader, writer):
        writer.write(b"last words")
        writer.write_eof()
        assert await reader.read() == b"last words"
        await server.ended.wait()


async def test_existing_connections_are_reset_and_new_ones_accepted(echo: tuple[Echo, FaultProxy]) -> None:
    server, proxy = echo
    async with connected(proxy) as first, connected(proxy) as second:
        assert await exchange(first, b"1") == b"1"
        assert await exchange(second, b"2") == b"2"
        proxy.reset_connections()
        for reader, _ in (first, second):
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
        await asyncio.wait_for(server.ended.wait(), 30)
        assert proxy.connections == 0
    async with connected(proxy) as again:
        assert await exchange(again, b"3") == b"3"
        assert proxy.accepted == 3


async def test_a_stalled_request_reaches_the_server_after_healing(echo: tuple[Echo, FaultProxy]) -> None:
    server, proxy = echo
    async with connected(proxy) as (reader, writer):
        proxy.stall(Direction.TO_SERVER)
        writer.write(b"late")
        assert await silent(reader)
        assert server.received == b""
        proxy.heal()
        assert await reader.readexactly(4) == b"late"


async def test_a_stalled_reply_leaves_the_request_applied(echo: tuple[Echo, FaultProxy]) -> None:
    server, proxy = echo
    async with connected(proxy) as (reader, writer):
        proxy.stall(Direction.TO_CLIENT)
        writer.write(b"done")
        await server.until(b"done")
        assert await silent(reader)
        proxy.heal()
        assert await reader.readexactly(4) == b"done"


async def test_a_delay_keeps_order_and_pipelines(echo: tuple[Echo, FaultProxy]) -> None:
    _, proxy = echo
    proxy.delay(0.4)
    async with connected(proxy) as (reader, writer):
        began = time.monotonic()
        for letter in b"abcde":
            writer.write(bytes([letter]))
            await asyncio.sleep(0.01)
        assert await reader.readexactly(5) == b"abcde"
        # One round trip, not five.
        assert 0.8 <= time.monotonic() - began < 3.0


async def test_a_cut_ends_the_connection_after_the_given_bytes_to_the_server(
    echo: tuple[Echo, FaultProxy],
) -> None:
    server, proxy = echo
    proxy.cut_after(6, Direction.TO_SERVER)
    async with connected(proxy) as (_, writer):
        writer.write(b"abcd")
        await server.until(b"abcd")
        writer.write(b"efgh")
        await asyncio.wait_for(server.ended.wait(), 30)
        assert server.received == b"abcdef"
    async with connected(proxy) as again:
        assert await exchange(again, b"whole again") == b"whole again"


async def test_a_cut_ends_the_connection_after_the_given_bytes_to_the_client(
    echo: tuple[Echo, FaultProxy],
) -> None:
    server, proxy = echo
    proxy.cut_after(3, Direction.TO_CLIENT)
    async with connected(proxy) as (reader, writer):
        writer.write(b"abcdef")
        assert await reader.read() == b"abc"
        assert server.received == b"abcdef"


async def test_dropped_replies_never_arrive_although_their_requests_did(echo: tuple[Echo, FaultProxy]) -> None:
    server, proxy = echo
    async with connected(proxy) as (reader, writer):
        proxy.drop(Direction.TO_CLIENT)
        writer.write(b"request")
        await server.until(b"request")
        assert await silent(reader)
        proxy.heal()
        proxy.reset_connections()
        with pytest.raises(ConnectionResetError):
            await reader.read(1)


async def test_dropped_requests_never_arrive(echo: tuple[Echo, FaultProxy]) -> None:
    server, proxy = echo
    async with connected(proxy) as streams:
        proxy.drop(Direction.TO_SERVER)
        streams[1].write(b"request")
        assert await silent(streams[0])
        proxy.heal()
        assert await exchange(streams, b"next") == b"next"
        assert server.received == b"next"


async def test_a_refusing_proxy_refuses_new_connections_and_keeps_open_ones(echo: tuple[Echo, FaultProxy]) -> None:
    _, proxy = echo
    hosts = proxy.hosts
    async with connected(proxy) as streams:
        await exchange(streams, b"before")
        proxy.refuse()
        if sys.platform == "linux":  # the port stays reserved meanwhile
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", int(hosts.rpartition(":")[2])))
        with pytest.raises(ConnectionRefusedError):
            async with connected(proxy):
                pass
        assert await exchange(streams, b"open") == b"open"
    await proxy.listen()
    assert proxy.hosts == hosts
    async with connected(proxy) as streams:
        assert await exchange(streams, b"again") == b"again"


async def test_a_missing_server_resets_the_client() -> None:
    async with FaultProxy("127.0.0.1:1") as proxy, connected(proxy) as (reader, _):
        with pytest.raises(ConnectionResetError):
            await reader.read(1)


async def test_leaving_the_proxy_drops_its_connections_even_when_stalled(echo: tuple[Echo, FaultProxy]) -> None:
    _, outer = echo
    async with FaultProxy(outer.hosts) as proxy:
        host, port = proxy.hosts.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        proxy.stall()
        writer.write(b"x")
        await asyncio.sleep(0.02)
    with pytest.raises(ConnectionResetError):
        await reader.read(1)
    writer.transport.abort()
