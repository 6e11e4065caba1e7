"""A TCP proxy with network faults on demand, at the moment a test chooses.

The proxy has one connection to the client and one to the server. Each pair carries two flows, one per `Direction`.
Faults apply to all connections of the proxy and stay on until `FaultProxy.heal`.
"""

from __future__ import annotations

import asyncio
import enum
import re
import socket
import struct
import sys
from typing import TYPE_CHECKING, Final, Self, cast

if TYPE_CHECKING:
    from types import TracebackType

_CHUNK: Final = 65_536
# Maximum chunks read ahead of a stall or a delay. Beyond it TCP's backpressure stops the sender, as in a full network.
_AHEAD: Final = 64
# Seconds that a server may take to close its end of a reset connection.
_LINGER: Final = 1.0


class Direction(enum.Enum):
    """The direction in which data flows."""

    TO_SERVER = "to server"
    TO_CLIENT = "to client"


class Flow:
    """One direction of one connection: the data read and not yet forwarded."""

    def __init__(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.direction: Final = direction
        self._reader = reader
        self._writer = writer
        self._queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_AHEAD)

    async def read_ahead(self) -> None:
        """Read until the sender closes its end, which is reported as b""."""
        loop = asyncio.get_running_loop()
        while data := await self._reader.read(_CHUNK):
            await self._queue.put((loop.time(), data))
        await self._queue.put((loop.time(), b""))

    async def next(self) -> tuple[float, bytes]:
        """Return the time when the next data was read, and the data; b"" at the end."""
        return await self._queue.get()

    async def write(self, data: bytes) -> None:
        """Forward data; wait while the receiver accepts no more."""
        self._writer.write(data)
        await self._writer.drain()

    def write_end(self) -> None:
        """Pass the sender's end on to the receiver; the other direction stays open."""
        if not self._writer.is_closing():
            self._writer.write_eof()


class Connection:
    """A client's connection and the corresponding connection to the server."""

    def __init__(
        self,
        number: int,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.number: Final = number  #: the position in order of arrival, from 1
        self.over: bool = False
        self._ending: asyncio.Future[None] | None = None
        self._client = client[1]
        self._server = server[1]
        self.flows: Final = (
            Flow(Direction.TO_SERVER, client[0], server[1]),
            Flow(Direction.TO_CLIENT, server[0], client[1]),
        )

    def reset(self) -> None:
        """Reset the client's side; the server receives the data forwarded so far, then the end. Idempotent.

        A closed socket answers a late reply with RST, and a ZooKeeper server then ignores requests that it has received
        and not read. So replies are read until the server closes.
        """
        self.over = True
        reset(self._client)
        transport = cast("asyncio.Transport", self._server.transport)
        if self._ending is not None or transport.is_closing():
            return
        discarding = _Discarding()
        transport.set_protocol(discarding)
        try:
            transport.resume_reading()
            transport.write_eof()
        except OSError:  # the server has reset the connection, which the transport has not noticed
            transport.abort()
        self._ending = discarding.closed

    async def ended(self) -> None:
        """After `reset`, wait until the server has closed its end; close it after a second."""
        if self._ending is not None:
            await asyncio.wait([self._ending], timeout=_LINGER)
            self._server.transport.abort()
            await self._ending

    def close(self) -> None:
        """Close both sides in order, after all forwarded data is delivered. Idempotent."""
        self.over = True
        self._client.close()
        self._server.close()

    def abort(self) -> None:
        """Drop both sides, and the data not yet delivered. Idempotent."""
        self.over = True
        reset(self._client)
        reset(self._server)


class _Discarding(asyncio.Protocol):
    """Discards the data that a server still sends; its transport closes when the server does."""

    def __init__(self) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio passes it by this name
        """See `asyncio.Protocol`."""
        if not self.closed.done():
            self.closed.set_result(None)


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with a TCP RST, as the machine of a crashed peer answers. Idempotent."""
    if not writer.transport.is_closing():
        linger = struct.pack("ii", 1, 0)  # on, with 0 s: the kernel sends RST instead of FIN
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


class FaultProxy:
    """A proxy in front of one server, for use under ``async with``. Without faults, bytes pass through unchanged.

    Args:
        server: ``host:port`` of the server; the first one if it is a list.

    `accepted` is the number of connections so far.
    """

    def __init__(self, server: str) -> None:
        first = re.split("[,/]", server, maxsplit=1)[0]
        host, _, port = first.rpartition(":")
        self._target = (host.strip("[]"), int(port))
        self._port = 0
        self._reserved: socket.socket | None = None
        self._listener: asyncio.Server | None = None
        self._owner: asyncio.Task[None] | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._connections: dict[Connection, asyncio.Task[None]] = {}
        self._lingering: set[asyncio.Task[None]] = set()
        self._open = {direction: asyncio.Event() for direction in Direction}
        self._delay = dict.fromkeys(Direction, 0.0)
        self._dropping: set[Direction] = set()
        self._budget: dict[Direction, int] = {}
        self.accepted: int = 0
        for flowing in self._open.values():
            flowing.set()

    @property
    def hosts(self) -> str:
        """The connection string of the proxy."""
        return f"127.0.0.1:{self._port}"

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    def reset_connections(self) -> None:
        """Reset (RST) all open connections. Forwarded bytes still reach the server; new connections are accepted."""
        for connection, task in self._connections.items():
            connection.reset()
            task.cancel()
        self._connections.clear()

    def stall(self, *directions: Direction) -> None:
        """Forward nothing in these directions (default: both), not even the end, until `heal`."""
        for direction in directions or Direction:
            self._open[direction].clear()

    def delay(self, seconds: float, *directions: Direction) -> None:
        """Delay all data in these directions (default: both) by this many seconds."""
        for direction in directions or Direction:
            self._delay[direction] = seconds

    def drop(self, direction: Direction) -> None:
        """Drop all data in this direction from now on; the other direction is not affected."""
        self._dropping.add(direction)

    def cut_after(self, count: int, direction: Direction) -> None:
        """Forward this many more bytes in this direction, then end the connection of the last byte. Applies once."""
        self._budget[direction] = count

    def heal(self) -> None:
        """Remove stalls, delays, drops and cuts. Stalled bytes are forwarded; dropped bytes stay lost."""
        for direction in Direction:
            self._open[direction].set()
            self._delay[direction] = 0.0
        self._dropping.clear()
        self._budget.clear()

    def refuse(self) -> None:
        """Stop listening: new connections are refused, as if the server were down; open connections continue."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def listen(self) -> None:
        """Accept connections again, on the same port. Raises: OSError when another process has taken the port."""
        if self._listener is None:
            port = self._port or self._reserve()
            self._listener = await asyncio.start_server(self._accept, "127.0.0.1", port, backlog=1024)
            self._port = self._listener.sockets[0].getsockname()[1]

    def _reserve(self) -> int:
        """Reserve a port, bound without listening, so that no process receives it while connections are refused.

        Only Linux allows a second bind for listening; other systems get 0, any port.
        """
        if sys.platform != "linux":
            return 0
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        return int(self._reserved.getsockname()[1])

    async def __aenter__(self) -> Self:
        started = asyncio.Event()
        # Fixtures may exit in a task other than the one they entered in, which a task group does not allow.
        self._owner = asyncio.create_task(self._own_tasks(started), name=f"{type(self).__name__} for {self._target}")
        await started.wait()
        try:
            await self.listen()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.refuse()
        await self._end()

    async def _end(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
        if self._owner is not None:
            self._owner.cancel()
            await asyncio.wait([self._owner])
            await asyncio.gather(*self._lingering)
            if not self._owner.cancelled():
                self._owner.result()  # raises the error of a failed connection, including one of a test's own `match`

    async def _own_tasks(self, started: asyncio.Event) -> None:
        try:
            async with asyncio.TaskGroup() as self._tasks:
                started.set()
                await asyncio.get_running_loop().create_future()  # until cancelled, which also ends the connections
        finally:
            self._tasks = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._tasks is None:
            writer.transport.abort()
            return
        self.accepted += 1
        self._tasks.create_task(self._connect((reader, writer), self.accepted))

    async def _connect(self, client: tuple[asyncio.StreamReader, asyncio.StreamWriter], number: int) -> None:
        try:
            server = await asyncio.open_connection(*self._target)
        except OSError:
            reset(client[1])
            return
        except asyncio.CancelledError:
            client[1].transport.abort()
            raise
        connection = Connection(number, client, server)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- for the type checker
        self._connections[connection] = task
        try:
            async with asyncio.TaskGroup() as flows:
                for flow in connection.flows:
                    flows.create_task(flow.read_ahead())
                    flows.create_task(self._pump(connection, flow))
            connection.close()
        except* OSError:  # a peer, or a fault, reset its connection
            if not connection.over:
                connection.reset()
        finally:
            self._connections.pop(connection, None)
            if not connection.over:
                connection.abort()
            lingering = asyncio.create_task(connection.ended())
            self._lingering.add(lingering)
            lingering.add_done_callback(self._lingering.discard)

    async def _pump(self, connection: Connection, flow: Flow) -> None:
        while True:
            read_at, data = await flow.next()
            if not data:
                await self._arrive(flow.direction, read_at)
                flow.write_end()
                return
            await self._forward(connection, flow, read_at, data)

    async def _forward(self, connection: Connection, flow: Flow, read_at: float, data: bytes) -> None:
        """Forward the data read, subject to the faults of its direction."""
        await self._arrive(flow.direction, read_at)
        if connection.over:  # reset by the other direction in the meantime
            raise ConnectionAbortedError
        if flow.direction in self._dropping:
            return
        budget = self._budget.get(flow.direction)
        if budget is None or budget > len(data):
            if budget is not None:
                self._budget[flow.direction] = budget - len(data)
            await flow.write(data)
            return
        del self._budget[flow.direction]
        await flow.write(data[:budget])
        connection.close()
        raise ConnectionAbortedError

    async def _arrive(self, direction: Direction, read_at: float) -> None:
        """Wait as long as a delay or stall holds the data read at that time."""
        if self._delay[direction]:
            await asyncio.sleep(read_at + self._delay[direction] - asyncio.get_running_loop().time())
        await self._open[direction].wait()
