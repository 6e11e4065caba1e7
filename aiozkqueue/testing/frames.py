"""A proxy that understands ZooKeeper's frames, for faults at an exact request, before or after it is applied."""

from __future__ import annotations

import asyncio
import enum
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from aiozkqueue.testing.proxy import Connection, Direction, FaultProxy, Flow

# No frame is this long; a four-letter command, read as a length, always is.
_LONGEST: Final = 1 << 28
_LENGTH: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">ii")


class Opcode(enum.IntEnum):
    """The operation of a request: ZooKeeper's numbers; ``CONNECT`` stands for a connection's first frame."""

    CONNECT = -10
    CLOSE = -11
    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    SET_WATCHES2 = 105
    ADD_WATCH = 106


@dataclass(frozen=True, slots=True)
class Request:
    """A request that passes through the proxy."""

    connection: int  #: the number of its connection, from 1
    opcode: int  #: an `Opcode`, or another opcode of ZooKeeper
    xid: int  #: the client's number of the request; 0 for ``CONNECT``
    body: bytes  #: the bytes after the header


#: Chooses requests: an opcode, or a function of the request.
Match = int | Callable[[Request], bool]


class _Action(enum.Enum):
    LOSE_BEFORE = enum.auto()
    LOSE_AFTER = enum.auto()
    HOLD_REQUEST = enum.auto()
    HOLD_REPLY = enum.auto()


class Fault:
    """A fault that waits for its request, and later its result."""

    def __init__(self, action: _Action, match: Match, nth: int, times: int | None) -> None:
        self.action: Final = action
        self._match = match
        self._skip = nth - 1
        self._times = times
        self._struck = asyncio.Event()
        self._released = asyncio.Event()
        self.requests: Final[list[Request]] = []  #: the requests affected so far

    async def struck(self, timeout: float = 30.0) -> Request:
        """Wait until the fault has happened (for a held reply: until the reply is held), and return its request.

        Raises: TimeoutError after ``timeout`` seconds.
        """
        async with asyncio.timeout(timeout):
            await self._struck.wait()
        return self.requests[-1]

    def release(self) -> None:
        """Release the held data, and hold nothing more. Idempotent."""
        self._times = 0
        self._released.set()

    def takes(self, request: Request) -> bool:
        """Count the request, and return whether the fault affects it."""
        if self._times == 0:
            return False
        if not (request.opcode == self._match if isinstance(self._match, int) else self._match(request)):
            return False
        if self._skip:
            self._skip -= 1
            return False
        if self._times is not None:
            self._times -= 1
        return True

    def strike(self, request: Request) -> None:
        """Record that the fault has happened."""
        self.requests.append(request)
        self._struck.set()

    async def released(self) -> None:
        """Wait until the held data may continue."""
        await self._released.wait()


class FrameSplitter:
    """The bytes of one direction, split into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._raw = False

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Return the pieces now complete: the bytes to forward, and the frame's content (b"" if it is not a frame)."""
        self._buffer += data
        pieces: list[tuple[bytes, bytes]] = []
        while self._buffer:
            if not self._raw and len(self._buffer) < _LENGTH.size:
                break
            (length,) = (0,) if self._raw else _LENGTH.unpack_from(self._buffer)
            self._raw = self._raw or not 0 <= length < _LONGEST
            end = len(self._buffer) if self._raw else _LENGTH.size + length
            if len(self._buffer) < end:
                break
            whole = bytes(self._buffer[:end])
            del self._buffer[:end]
            pieces.append((whole, b"" if self._raw else whole[_LENGTH.size :]))
        return pieces


class _Conversation:
    """The state of one connection: its frames, and the requests that await replies."""

    def __init__(self) -> None:
        self.frames = {direction: FrameSplitter() for direction in Direction}
        self.greeted = dict.fromkeys(Direction, False)
        self.awaited: dict[int, tuple[Fault, Request]] = {}

    def request(self, connection: Connection, frame: bytes) -> Request | None:
        """Return a client's frame as a request; None if it is not a request."""
        if not self.greeted[Direction.TO_SERVER]:
            self.greeted[Direction.TO_SERVER] = True
            return Request(connection.number, Opcode.CONNECT, 0, frame)
        if len(frame) < _HEADER.size:
            return None
        xid, opcode = _HEADER.unpack_from(frame)
        return Request(connection.number, opcode, xid, frame[_HEADER.size :])

    def answered(self, frame: bytes) -> tuple[Fault, Request] | None:
        """Return the fault that waits for this frame from the server, or None."""
        if not self.greeted[Direction.TO_CLIENT]:
            self.greeted[Direction.TO_CLIENT] = True
            return self.awaited.pop(0, None)
        return self.awaited.pop(_LENGTH.unpack_from(frame)[0], None) if len(frame) >= _LENGTH.size else None


class ZooKeeperProxy(FaultProxy):
    """A `FaultProxy` for a ZooKeeper server's plain port that can also fail chosen requests.

    The method for each of the four faults takes ``match`` (an `Opcode`, or a function of the `Request`), ``nth`` (the
    first matching request to fail, from 1) and ``times`` (how many from there on, None for all).
    """

    def __init__(self, server: str) -> None:
        super().__init__(server)
        self._conversations: WeakKeyDictionary[Connection, _Conversation] = WeakKeyDictionary()
        self._faults: list[Fault] = []
        self.requests: dict[int, int] = {}  #: the number of requests of each opcode, failed or not

    def lose_before(self, match: Match, *, nth: int = 1, times: int | None = 1) -> Fault:
        """Reset the connection before the request reaches the server; earlier requests do reach it."""
        return self._expect(_Action.LOSE_BEFORE, match, nth, times)

    def lose_after(self, match: Match, *, nth: int = 1, times: int | None = 1) -> Fault:
        """Let the server apply the request, then reset the connection instead of forwarding the reply."""
        return self._expect(_Action.LOSE_AFTER, match, nth, times)

    def hold_request(self, match: Match, *, nth: int = 1, times: int | None = 1) -> Fault:
        """Hold the request, and the client's later data, in the proxy until `Fault.release`."""
        return self._expect(_Action.HOLD_REQUEST, match, nth, times)

    def hold_reply(self, match: Match, *, nth: int = 1, times: int | None = 1) -> Fault:
        """Let the server apply the request, and hold its reply and later data until `Fault.release`."""
        return self._expect(_Action.HOLD_REPLY, match, nth, times)

    def heal(self) -> None:
        """Remove all faults, and release the held data."""
        super().heal()
        for fault in self._faults:
            fault.release()

    def _expect(self, action: _Action, match: Match, nth: int, times: int | None) -> Fault:
        fault = Fault(action, match, nth, times)
        self._faults.append(fault)
        return fault

    async def _forward(self, connection: Connection, flow: Flow, read_at: float, data: bytes) -> None:
        conversation = self._conversations.setdefault(connection, _Conversation())
        for whole, frame in conversation.frames[flow.direction].feed(data):
            if frame and flow.direction is Direction.TO_SERVER:
                await self._strike_request(conversation, connection, frame)
            elif frame:
                await self._strike_reply(conversation, connection, frame)
            await super()._forward(connection, flow, read_at, whole)

    async def _strike_request(self, conversation: _Conversation, connection: Connection, frame: bytes) -> None:
        request = conversation.request(connection, frame)
        if request is None:
            return
        self.requests[request.opcode] = self.requests.get(request.opcode, 0) + 1
        for fault in [fault for fault in self._faults if fault.takes(request)]:
            if fault.action in {_Action.LOSE_AFTER, _Action.HOLD_REPLY}:
                conversation.awaited[request.xid] = (fault, request)
                continue
            fault.strike(request)
            if fault.action is _Action.LOSE_BEFORE:
                connection.reset()
                raise ConnectionAbortedError
            await fault.released()

    async def _strike_reply(self, conversation: _Conversation, connection: Connection, frame: bytes) -> None:
        struck = conversation.answered(frame)
        if struck is None:
            return
        fault, request = struck
        fault.strike(request)
        if fault.action is _Action.LOSE_AFTER:
            connection.reset()
            raise ConnectionAbortedError
        await fault.released()
