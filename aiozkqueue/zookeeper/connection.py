"""One connection to one server: frames in, frames out. Its loss fails every pending request at once.

It cuts replies out of the data that the transport delivers, and fails every request when the transport is lost. aiozk's
connection awaits three timed reads for each response, and leaves pending calls waiting at the end of the stream.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

from aiozkqueue.zookeeper import wire
from aiozkqueue.zookeeper.dropping import Dropping
from aiozkqueue.zookeeper.errors import (
    ConnectionLossError,
    NotConnectedError,
    ProtocolError,
    SessionExpiredError,
    UnsupportedServerError,
    ZooKeeperError,
)
from aiozkqueue.zookeeper.tls_errors import described

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.zookeeper.listings import Pieces

_log = logging.getLogger(__name__)

T = TypeVar("T")

_CLOSED = "closed before it answered: "
_UNREADY = (
    "a server that is starting, has no quorum or disk space, is at its maxClientCnxns or has older data than this "
    "client has seen, as after a restore?"
)
#: Why a server may close a connection without an answer.
UNANSWERED = f"{_CLOSED}a TLS port, or {_UNREADY}"
_UNANSWERED_OVER_TLS = f"{_CLOSED}{_UNREADY}"
MAX_REPLY = 256 * 1024 * 1024  # bytes: the names of about ten million children
_MAX_FIRST_REPLY = 64 * 1024
#: A request of this many bytes is written at once, not at the end of the loop's tick, so that the server can start.
_LARGE = 4096
#: Maximum bytes of a listing that one turn of the loop passes on: some thousand names, a few milliseconds.
_PORTION = 48 * 1024
_NOTIFICATION = struct.pack("!i", wire.WATCH_XID)
_LENGTH = struct.Struct("!i")
_LENGTH_AND_XID = struct.Struct("!ii")
_HEADER: Final[struct.Struct] = wire.REPLY_HEADER

#: The xid of a request, its future, its decoder, its path, and the reader for a reply that is read in pieces.
_Waiting: TypeAlias = (
    "tuple[int, asyncio.Future[Any], Callable[[bytes, int], Any], str | None, Callable[[int], Pieces[Any]] | None]"
)


class _Arriving:
    """The reply to the first pending request, which has arrived in part."""

    def __init__(self, future: asyncio.Future[Any], pieces: Pieces[Any], left: int, zxid: int) -> None:
        self.future = future
        self.pieces = pieces
        self.left = left
        """The number of bytes still to come."""
        self.zxid = zxid

    def feed(self, piece: bytes) -> None:
        """Read the bytes received, if an awaiter is left. Raises: ProtocolError."""
        self.left -= len(piece)
        if not self.future.done():
            self.pieces.feed(piece)


class Connection(asyncio.Protocol):
    """A connection whose pending requests wait in a FIFO, because the server answers in the order of sending.

    ``on_events`` is called with the watch notifications that arrived together, ``on_lost`` once, before the pending
    requests fail.
    """

    def __init__(
        self, peer: str, *, on_events: Callable[[list[wire.Event]], None], on_lost: Callable[[Connection], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_events = on_events
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._xid = 0
        self._pending: deque[_Waiting] = deque()
        self._large: deque[tuple[int, int]] = deque()  # the xid and the size of each large request in it
        self._auths: deque[asyncio.Future[None]] = deque()
        self._first: asyncio.Future[wire.Connected] | None = None
        self._outgoing: list[bytes] = []
        self._incoming = bytearray()
        self._arriving: _Arriving | None = None
        self._deferred = bytearray()
        """Data received and left for the next turn of the loop; the transport reads nothing more in the meantime."""
        self._max_frame = _MAX_FIRST_REPLY
        self.peer = peer
        self.last_zxid: int = 0
        self.answered: int = 0  # requests, whatever the answer
        self.pings: int = 0
        self.pongs: int = 0  # pings answered
        self.received: int = 0  # bytes, except those of notifications
        self.last_received: float = self._loop.time()
        self.last_sent: float = self.last_received
        #: Whether the server has reported on this connection that the session has ended.
        self.session_expired: bool = False
        self.dropping: Dropping = Dropping()
        #: Bytes of the largest request without an answer when the peer closed the connection; 0: only small ones.
        self.cut_off: int = 0
        #: The reason why the connection was lost; None while it is open.
        self.loss: ConnectionLossError | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()

    # Requests

    def handshake(self, packet: bytes) -> asyncio.Future[wire.Connected]:
        """Send the first packet; its reply is the only one without a header."""
        future: asyncio.Future[wire.Connected] = self._loop.create_future()
        if self.loss is not None:
            return failed(future, self.loss)
        self._first = future
        self._send(_LENGTH.pack(len(packet)), packet)
        return future

    def authenticate(self, packet: bytes) -> asyncio.Future[None]:
        """Send an auth packet, which carries its own xid."""
        future: asyncio.Future[None] = self._loop.create_future()
        if self.loss is not None:
            return failed(future, self.loss)
        self._auths.append(future)
        self._send(_LENGTH.pack(len(packet)), packet)
        return future

    def submit(self, request: wire.Request[T]) -> asyncio.Future[T]:
        """Queue a request for the write at the end of this loop tick. A cancelled future leaves the request queued."""
        future: asyncio.Future[T] = self._loop.create_future()
        if self.loss is not None:
            return failed(future, NotConnectedError(f"not sent: {self.loss}"))
        self._xid = xid = self._xid + 1 if self._xid < wire.HIGHEST_XID else 1
        body, decode, path, pieces = request
        self._pending.append((xid, future, decode, path, pieces))
        if len(body) >= _LARGE:
            self._large.append((xid, request.size))
        self._send(_LENGTH_AND_XID.pack(len(body) + 4, xid), body)
        return future

    @property
    def waiting(self) -> int:
        """The number of requests not yet answered."""
        return len(self._pending)

    def ping(self) -> None:
        """Keep the session alive; the answer shows in ``pongs``."""
        if self.loss is None:
            self.pings += 1
            self._send(_LENGTH.pack(len(wire.PING)), wire.PING)

    def abort(self, reason: str, cause: BaseException | None = None) -> None:
        """Drop the connection at once: all pending requests fail before this returns."""
        if self.loss is not None:
            return
        self.loss = loss = ConnectionLossError(f"connection to {self.peer} lost: {reason}")
        loss.__cause__ = cause
        _log.debug("%s", loss)  # users of the connection log it at a higher level
        if self._transport is not None:
            self._transport.abort()
        self._on_lost(self)
        pending: list[asyncio.Future[Any]] = [future for _, future, *_ in self._pending]
        pending += self._auths
        if self._first is not None:
            pending.append(self._first)
        self._pending.clear()
        self._auths.clear()
        self._outgoing.clear()
        self._incoming.clear()
        self._arriving = None
        self._deferred.clear()
        for future in pending:
            if not future.done():
                error = ConnectionLossError(str(loss))  # one per future: a traceback belongs to one raise
                error.__cause__ = cause
                failed(future, error)
        if not self.closed.done():
            self.closed.set_result(None)

    def disown(self) -> None:
        """Send nothing more, and leave the socket alone, because the parent of this forked process uses it."""
        self._transport = None
        self._outgoing.clear()

    def _send(self, head: bytes, body: bytes) -> None:
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing += (head, body)
        if len(body) >= _LARGE:
            self._flush()

    def _flush(self) -> None:
        if self._outgoing and self._transport is not None and self.loss is None:
            self._transport.write(b"".join(self._outgoing))
            self.last_sent = self._loop.time()
        self._outgoing.clear()

    # Calls by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        # The loop promises a stream transport; uvloop's transports are not a subclass, so an assertion would fail.
        self._transport = cast("asyncio.Transport", transport)
        if self.loss is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the pending requests after a reset, an end of the stream or a failed write."""
        if self.loss is None:
            self.cut_off = max((size for _, size in self._large), default=0)
        if exc is not None and not isinstance(exc, ConnectionError):
            self.abort(described(exc) or type(exc).__name__, exc)
        elif self._first is not None and self._transport is not None:
            tls = self._transport.get_extra_info("sslcontext") is not None
            self.abort(_UNANSWERED_OVER_TLS if tls else UNANSWERED, exc)
        else:
            self.abort(str(exc) or type(exc).__name__ if exc is not None else "closed by the server", exc)

    def eof_received(self) -> None:
        """Fail the pending requests: otherwise the transport would first wait until it has sent everything."""
        self.connection_lost(None)

    def data_received(self, data: bytes) -> None:
        """Cut the stream into frames."""
        self.last_received = self._loop.time()
        self.received += len(data)
        if self._deferred:  # TLS may still deliver data that it decrypted before the pause
            self._deferred += data
        else:
            self._cut(data)

    def _cut(self, data: bytes) -> None:
        try:
            whole = self._joined(data)
            offset = self._frames(whole)
        except ProtocolError as error:
            self.abort(str(error), error)
            return
        if offset < len(whole) and self.loss is None:
            if self._arriving is None:
                self._incoming += whole[offset:]
            else:
                self._defer(whole[offset:])

    def _joined(self, data: bytes) -> bytes:
        """Prepend the stored beginning of a frame; return nothing until enough of the frame has arrived."""
        incoming = self._incoming
        if not incoming:
            return data
        incoming += data
        if len(incoming) < _LENGTH.size:
            return b""
        if len(incoming) < _LENGTH.size + self._length(incoming, 0) and not self._in_pieces(incoming, 0):
            return b""
        whole = bytes(incoming)
        incoming.clear()
        return whole

    def _frames(self, data: bytes) -> int:
        """Read the complete frames, and a portion of a reply that is read in pieces; return the offset of the rest."""
        offset = 0
        while self.loss is None:
            if (arriving := self._arriving) is not None:
                offset = self._continue_reply(arriving, data, offset)
                if arriving.left:
                    break
            if len(data) - offset < _LENGTH.size:
                break
            xid = data[offset + _LENGTH.size : offset + _LENGTH_AND_XID.size]
            if xid == _NOTIFICATION and self._max_frame != _MAX_FIRST_REPLY:
                begin = offset
                events, offset = wire.decode_events(data, begin)
                if events:
                    self.received -= offset - begin
                    self._on_events(events)
                    continue
            length = self._length(data, offset)
            after = offset + _LENGTH.size + length
            if (after > len(data) or length > _PORTION) and self._in_pieces(data, offset):
                offset = self._begin(data, offset, length)
            elif after > len(data):
                break
            else:
                self._frame(data[offset + _LENGTH.size : after])
                offset = after
        return offset

    def _defer(self, data: bytes) -> None:
        """Leave this for the next turn of the loop: one read of the transport has names for tens of milliseconds."""
        if self._transport is not None:
            self._deferred += data
            self._transport.pause_reading()
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        if self.loss is not None:
            return
        data = bytes(self._deferred)
        self._deferred.clear()
        self._cut(data)
        if not self._deferred and self._transport is not None:
            self._transport.resume_reading()

    def _length(self, data: bytes | bytearray, offset: int) -> int:
        length: int = _LENGTH.unpack_from(data, offset)[0]
        if not 0 <= length <= self._max_frame:
            raise ProtocolError(f"a frame of {length} bytes announced")
        return length

    # Replies that are read while they arrive

    def _in_pieces(self, data: bytes | bytearray, offset: int) -> bool:
        """Whether the frame at this offset is the reply to a request whose reply is read in pieces."""
        if not self._pending or len(data) - offset < _LENGTH.size + _HEADER.size:
            return False
        xid, _zxid, code = _HEADER.unpack_from(data, offset + _LENGTH.size)
        expected, _future, _decode, _path, pieces = self._pending[0]
        return pieces is not None and code == 0 and xid == expected and self._length(data, offset) >= _HEADER.size

    def _begin(self, data: bytes, offset: int, length: int) -> int:
        """Expect the reply whose frame begins at this offset; return the offset of its body."""
        offset += _LENGTH.size
        _xid, zxid, _code = _HEADER.unpack_from(data, offset)
        _, future, _, _, pieces = self._pending[0]
        assert pieces is not None  # noqa: S101 - `_in_pieces` has said so
        if self.dropping.since is not None:
            self.dropping.carried_out()
        size = length - _HEADER.size
        self._arriving = _Arriving(future, pieces(size), size, zxid)
        return offset + _HEADER.size

    def _continue_reply(self, arriving: _Arriving, data: bytes, offset: int) -> int:
        """Read a portion of the reply; return the offset of its end."""
        end = min(offset + arriving.left, offset + _PORTION, len(data))
        arriving.feed(data[offset:end])
        if not arriving.left:
            result = None if arriving.future.done() else arriving.pieces.finish()
            self._arriving = None
            if arriving.zxid > 0:
                self.last_zxid = arriving.zxid
            self._pending.popleft()
            self.answered += 1
            if not arriving.future.done():
                arriving.future.set_result(result)
        return end

    # Frames

    def _frame(self, frame: bytes) -> None:
        if self._max_frame == _MAX_FIRST_REPLY:
            self._connected(frame)
            return
        if len(frame) < _HEADER.size:
            raise ProtocolError(f"a reply of {len(frame)} bytes")
        xid, zxid, code = _HEADER.unpack_from(frame)
        if xid >= 0:
            if zxid > 0:
                self.last_zxid = zxid
            self._reply(xid, code, frame)
        elif xid == wire.WATCH_XID:
            self.received -= _LENGTH.size + len(frame)
            self._event(wire.decode_event(frame, _HEADER.size))
        elif xid == wire.AUTH_XID:
            self._authenticated(code)
        elif xid == wire.PING_XID:
            self.pongs += 1
        else:
            raise ProtocolError(f"a reply to the unknown xid {xid}")

    def _connected(self, frame: bytes) -> None:
        if self._first is None:
            raise ProtocolError("a frame before the first request")
        connected = wire.decode_connected(frame)
        self._max_frame = MAX_REPLY
        first, self._first = self._first, None
        if not first.done():
            first.set_result(connected)

    def _reply(self, xid: int, code: int, frame: bytes) -> None:
        if not self._pending:
            raise ProtocolError(f"a reply to xid {xid}, which was not sent")
        expected, future, decode, path, _pieces = self._pending[0]
        if xid != expected or code == wire.UNIMPLEMENTED:
            raise self._unexpected_reply(xid, expected, code)
        if code == wire.SESSION_MOVED:  # another connection of this client has the session; this one is stale
            self.abort("the session has moved to another server")
            return
        result: Any = None
        error: ZooKeeperError | None = None
        try:
            if code:
                error = wire.error_of(code, path)
            else:
                result = decode(frame, _HEADER.size)
        except ProtocolError:
            raise  # the request is still pending, and fails with the connection
        except ZooKeeperError as refused:
            error = refused
        self._pending.popleft()
        self._note_reply(xid, code)
        if not future.done():
            if error is None:
                future.set_result(result)
            else:
                failed(future, error)
        if isinstance(error, SessionExpiredError):
            self._expire()

    def _unexpected_reply(self, xid: int, expected: int, code: int) -> ProtocolError:
        if code == wire.UNIMPLEMENTED:  # an old server answers such a request before earlier ones
            return UnsupportedServerError(
                f"the server {self.peer} does not know a request of this client; it needs ZooKeeper 3.6 or later"
            )
        return ProtocolError(f"a reply to xid {xid} instead of xid {expected}")

    def _note_reply(self, xid: int, code: int) -> None:
        self.answered += 1
        if self._large and self._large[0][0] == xid:
            self._large.popleft()
        if code == wire.THROTTLED:
            self.dropping.dropped(self._loop.time())
        elif self.dropping.since is not None:
            self.dropping.carried_out()

    def _authenticated(self, code: int) -> None:
        if not self._auths:
            raise ProtocolError("a reply to an auth packet that was not sent")
        future = self._auths.popleft()
        if future.done():
            return
        if code == 0:
            future.set_result(None)
        else:
            failed(future, wire.error_of(wire.AUTH_FAILED))

    def _event(self, event: wire.Event) -> None:
        if event.kind <= 0:  # concerns the session instead of a znode
            if event.connection_state == wire.SESSION_EXPIRED:
                self._expire()
            return
        self._on_events([event])

    def _expire(self) -> None:
        self.session_expired = True
        self.abort("the server has ended the session")


def failed(future: asyncio.Future[T], error: Exception) -> asyncio.Future[T]:
    """Fail a future that may have no awaiter, and return it."""
    future.set_exception(error)
    future.exception()  # prevents asyncio's warning about an exception never retrieved if the awaiter is gone
    return future
