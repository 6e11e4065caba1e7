"""ZooKeeper's protocol on one connection without retries, so that the effect of a fault is visible."""

from __future__ import annotations

import asyncio
import struct
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from aiozkqueue.testing import Opcode

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

_OPEN_ACL = struct.pack(">ii", 1, 31) + struct.pack(">i5si6s", 5, b"world", 6, b"anyone")


def text(value: str) -> bytes:
    return struct.pack(">i", len(value)) + value.encode()


class RawClient:
    """One session on one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._xid = 0
        self.timeout = 0

    def send(self, opcode: int, body: bytes) -> int:
        """Send a request without waiting for its reply; return its xid."""
        self._xid += 1
        self._send(struct.pack(">ii", self._xid, opcode) + body)
        return self._xid

    def send_create(self, path: str) -> int:
        return self.send(Opcode.CREATE, text(path) + text("") + _OPEN_ACL + struct.pack(">i", 0))

    async def reply(self) -> tuple[int, int]:
        """Return the xid and the error code of the next reply."""
        xid, _, error = struct.unpack_from(">iqi", await self._receive())
        return xid, error

    async def ended(self) -> None:
        """Read replies until the connection ends."""
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                await self.reply()

    async def create(self, path: str) -> int:
        """Create a znode; return the error code."""
        xid = self.send_create(path)
        answered, error = await self.reply()
        assert answered == xid
        return error

    async def exists(self, path: str) -> bool:
        self.send(Opcode.EXISTS, text(path) + b"\x00")
        return (await self.reply())[1] == 0

    async def greet(self, timeout_ms: int = 10_000) -> None:
        self._send(struct.pack(">iqiq", 0, 0, timeout_ms, 0) + struct.pack(">i16s", 16, bytes(16)))
        (_, self.timeout) = struct.unpack_from(">ii", await self._receive())

    def _send(self, frame: bytes) -> None:
        self._writer.write(struct.pack(">i", len(frame)) + frame)

    async def _receive(self) -> bytes:
        async with asyncio.timeout(30):
            (length,) = struct.unpack(">i", await self._reader.readexactly(4))
            return await self._reader.readexactly(length)


@asynccontextmanager
async def session(
    hosts: str, timeout_ms: int = 10_000, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[RawClient]:
    host, _, port = hosts.partition(",")[0].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    try:
        client = RawClient(reader, writer)
        await client.greet(timeout_ms)
        yield client
    finally:
        writer.transport.abort()
