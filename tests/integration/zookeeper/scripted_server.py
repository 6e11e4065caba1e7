"""A server that sends exactly the bytes that a test chooses."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from types import TracebackType

T = TypeVar("T")

BANNER = b"Zookeeper version: 3.9.5-scripted, built on 2025-01-01\nMode: standalone\n"
CLOSE = -11


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def connect_packet(session_id: int = 0, password: bytes = bytes(16), timeout: int = 4000) -> bytes:
    return struct.pack(">iqiqi", 0, 0, timeout, session_id, len(password)) + password + b"\0"


def connected(session_id: int, timeout: int = 4000) -> bytes:
    return frame(struct.pack(">iiqi", 0, timeout, session_id, 16) + b"p" * 16 + b"\0")


def reply(xid: int, *, error: int = 0, body: bytes = b"", zxid: int = 1) -> bytes:
    return frame(struct.pack(">iqi", xid, zxid, error) + body)


def close_elsewhere(hosts: str, session_id: int, password: bytes) -> None:
    """End a session at the first of these servers: resume it on a separate connection and close it.

    This blocks the loop on purpose, so that a client on it cannot reconnect between the two steps.
    """
    host, _, port = hosts.split(",", maxsplit=1)[0].rpartition(":")
    with socket.create_connection((host, int(port)), 60) as connection, suppress(ConnectionError):
        connection.sendall(frame(connect_packet(session_id, password)) + frame(struct.pack(">ii", 1, CLOSE)))
        while connection.recv(4096):
            pass


class Asked(NamedTuple):
    """The contents of a client's first packet."""

    last_zxid: int
    timeout: int
    session_id: int


class Peer:
    """The connection of one client."""

    def __init__(self, number: int, length: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self._length = length  # of the first packet, already read to recognise four-letter commands
        self._reader = reader
        self._writer = writer

    async def packet(self) -> bytes:
        length, self._length = self._length or await self._reader.readexactly(4), b""
        return await self._reader.readexactly(struct.unpack(">i", length)[0])

    async def asked(self) -> Asked:
        _, last_zxid, timeout, session_id = struct.unpack_from(">iqiq", await self.packet())
        return Asked(last_zxid, timeout, session_id)

    async def request(self) -> tuple[int, int]:
        """Return the xid and opcode of the next request; answer pings."""
        while True:
            xid, opcode = struct.unpack_from(">ii", await self.packet())
            if opcode != 11:
                return xid, opcode
            self.send(reply(-2))

    async def answer(self, body: bytes = b"", **fields: int) -> int:
        """Answer the next request; return its opcode."""
        xid, opcode = await self.request()
        self.send(reply(xid, body=body, **fields))
        return opcode

    async def keep_alive(self) -> None:
        """Answer each request with an empty body, until the client disconnects."""
        while True:
            await self.answer()

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def drop(self) -> None:
        self._writer.transport.abort()


class InOrder(random.Random):
    """Makes the client try servers and addresses in the order in which they are listed."""

    def sample(self, population: Sequence[T], k: int, **_: object) -> list[T]:
        return list(population)[:k]


class ScriptedServer:
    """Runs a script for each connection; with ``banner`` it also answers the ``srvr`` command, as stock aiozk needs."""

    def __init__(
        self, script: Callable[[Peer], Awaitable[None]], *, banner: bool = False, host: str = "127.0.0.1"
    ) -> None:
        self._script = script
        self._banner = banner
        self._host = host
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.hosts = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self._host, 0)
        port = self._server.sockets[0].getsockname()[1]
        self.hosts = f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first = await reader.readexactly(4)
            if first == b"srvr":
                writer.write(BANNER if self._banner else b"")
                await writer.drain()
                return
            self.connections += 1
            await self._script(Peer(self.connections, first, reader, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
