"""ZooKeeper's wire format with `struct` alone, for the few requests of the raw limit, and a blocking socket."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

CREATE: Final = 1
DELETE: Final = 2
READ: Final = 4
CHILDREN: Final = 8
MULTI: Final = 14
MULTI_READ: Final = 22
CLOSE: Final = -11
NODE_EXISTS: Final = -110

EPHEMERAL: Final = 1
SEQUENTIAL: Final = 2

_INT: Final = struct.Struct(">i")
_TWO: Final = struct.Struct(">ii")
_RESULT: Final = struct.Struct(">i?i")
_REPLY: Final = struct.Struct(">iqi")
_ANYONE: Final = struct.pack(">iii5si6s", 1, 31, 5, b"world", 6, b"anyone")
_PERSISTENT, _EPHEMERAL, _SEQUENTIAL = (_ANYONE + _INT.pack(flags) for flags in (0, EPHEMERAL, SEQUENTIAL))
_FLAGS: Final = {0: _PERSISTENT, EPHEMERAL: _EPHEMERAL, SEQUENTIAL: _SEQUENTIAL}
_END: Final = _RESULT.pack(-1, 1, -1)
_CREATE, _DELETE, _READ = (_RESULT.pack(kind, 0, -1) for kind in (CREATE, DELETE, READ))
# The stat of a znode: its data version is at byte 32 of 68.
_STAT: Final = 68
_VERSION: Final = 32


class RefusedError(Exception):
    """The server refused a request."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def create(path: bytes, data: bytes, flags: int = 0) -> bytes:
    """Encode the body of a create."""
    return b"".join((_INT.pack(len(path)), path, _INT.pack(len(data)), data, _FLAGS[flags]))


def delete(path: bytes, version: int = -1) -> bytes:
    """Encode the body of a delete."""
    return b"".join((_INT.pack(len(path)), path, _INT.pack(version)))


def read(path: bytes) -> bytes:
    """Encode the body of a read, without a watch."""
    return b"".join((_INT.pack(len(path)), path, b"\0"))


def creates(bodies: Iterable[bytes]) -> bytes:
    """Return the operations of a multi that creates."""
    return b"".join([_CREATE + body for body in bodies])


def deletes(bodies: Iterable[bytes]) -> bytes:
    """Return the operations of a multi that deletes."""
    return b"".join([_DELETE + body for body in bodies])


def reads(bodies: Iterable[bytes]) -> bytes:
    """Return the operations of a multi-read."""
    return b"".join([_READ + body for body in bodies])


def nodes(reply: bytes) -> list[tuple[bytes, int]]:
    """Return data and version of each znode in the reply to a multi-read."""
    found: list[tuple[bytes, int]] = []
    at, end = _REPLY.size, len(reply) - _RESULT.size
    while at < end:
        at += _RESULT.size
        (length,) = _INT.unpack_from(reply, at)
        at += 4
        data = reply[at : at + length]
        at += length
        found.append((data, _INT.unpack_from(reply, at + _VERSION)[0]))
        at += _STAT
    return found


class Connection:
    """A ZooKeeper session on a blocking socket. Requests are sent unchanged."""

    def __init__(self, address: tuple[str, int], timeout: float = 30.0) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self._xid = 0
        hello = struct.pack(">iqiqi16s?", 0, 0, round(timeout * 1000), 0, 16, bytes(16), 0)
        self._socket.sendall(_INT.pack(len(hello)) + hello)
        self._frame()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.send((CLOSE, b""))
                self.reply()
        finally:
            self._socket.close()

    def send(self, *requests: tuple[int, bytes]) -> None:
        """Send requests in one write."""
        frames: list[bytes] = []
        for kind, body in requests:
            self._xid += 1
            end = _END if kind in (MULTI, MULTI_READ) else b""
            frames += (_INT.pack(8 + len(body) + len(end)), _TWO.pack(self._xid, kind), body, end)
        self._socket.sendall(b"".join(frames))

    def reply(self) -> bytes:
        """Return the next reply. Raises: RefusedError."""
        frame = self._frame()
        _, _, error = _REPLY.unpack_from(frame)
        if error:
            raise RefusedError(error)
        if len(frame) > _REPLY.size + _RESULT.size and _RESULT.unpack_from(frame, _REPLY.size)[::2] == (-1, 0):
            # A refused multi: a sequence of error results, of which the first with a code is the failed operation.
            codes = struct.iter_unpack(">9xi", frame[_REPLY.size : -_RESULT.size])
            raise RefusedError(next((code for (code,) in codes if code), 0))
        return frame

    def call(self, kind: int, body: bytes) -> bytes:
        """Send one request and wait for its reply."""
        self.send((kind, body))
        return self.reply()

    def pipeline(self, requests: Sequence[tuple[int, bytes]], window: int) -> None:
        """Send requests with this many in flight, in writes of a quarter of that number."""
        step = max(1, window // 4)
        flying = 0
        for start in range(0, len(requests), step):
            part = requests[start : start + step]
            while flying + len(part) > window:
                self.reply()
                flying -= 1
            self.send(*part)
            flying += len(part)
        for _ in range(flying):
            self.reply()

    def children(self, path: bytes) -> list[bytes]:
        """List the names of the children; empty if the znode does not exist."""
        try:
            frame = self.call(CHILDREN, read(path))
        except RefusedError:
            return []
        at = _REPLY.size + 4
        found: list[bytes] = []
        while at < len(frame):
            (length,) = _INT.unpack_from(frame, at)
            found.append(frame[at + 4 : at + 4 + length])
            at += 4 + length
        return found

    def ensure(self, path: bytes) -> None:
        """Create a znode and its parents."""
        parts = path.split(b"/")[1:]
        for depth in range(1, len(parts) + 1):
            try:
                self.call(CREATE, create(b"/" + b"/".join(parts[:depth]), b""))
            except RefusedError as error:
                if error.code != NODE_EXISTS:
                    raise

    def clear(self, path: bytes) -> None:
        """Delete the children, one level deep, a thousand at a time."""
        names = self.children(path)
        gone = [delete(path + b"/" + name) for name in names]
        self.pipeline([(MULTI, deletes(gone[at : at + 1000])) for at in range(0, len(gone), 1000)], 4)

    def remove(self, path: bytes) -> None:
        """Delete a znode and its descendants."""
        for name in self.children(path):
            below = path + b"/" + name
            if self.children(below):
                self.remove(below)
        self.clear(path)
        try:
            self.call(DELETE, delete(path))
        except RefusedError:
            return  # it did not exist

    def _frame(self) -> bytes:
        received = self._received
        while len(received) < 4:  # noqa: PLR2004 - the size of a length field
            self._more()
        (length,) = _INT.unpack_from(received)
        while len(received) < 4 + length:
            self._more()
        frame = bytes(received[4 : 4 + length])
        del received[: 4 + length]
        return frame

    def _more(self) -> None:
        data = self._socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._received += data
