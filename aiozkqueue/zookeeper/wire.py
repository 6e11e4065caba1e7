"""The bytes of frequent requests and of all replies: encoders, and decoders that trust no length.

A decoder takes a reply and the offset of its body, and either returns the value or raises `ProtocolError`. Counts and
lengths are checked against the bytes present, so a reply never costs more memory than a small multiple of its size.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from aiozkqueue.zookeeper import errors
from aiozkqueue.zookeeper.interface import (
    Collector,
    Create,
    CreateAs,
    Delete,
    Node,
    Operation,
    Result,
    SetData,
    Stat,
    Versioned,
)
from aiozkqueue.zookeeper.listings import Collected, Listing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiozkqueue.zookeeper.auth import Acl
    from aiozkqueue.zookeeper.listings import Pieces

T = TypeVar("T")
C = TypeVar("C", bound=Collector)

MAX_REQUEST = 1_048_575  # jute.maxbuffer, the server's default for a whole packet, bytes
HIGHEST_XID = 0x7FFFFFFF
WATCH_XID, PING_XID, AUTH_XID = -1, -2, -4  # of a notification, and of the requests that are answered out of order

CREATE, DELETE, EXISTS, GET_DATA, SET_DATA, GET_CHILDREN, CHECK = 1, 2, 3, 4, 5, 8, 13
PING_OPCODE, MULTI, CREATE2, CREATE_CONTAINER, MULTI_READ, CLOSE_SESSION = 11, 14, 15, 19, 22, -11

_INT = struct.Struct("!i")
_STAT = struct.Struct("!qqqqiiiqiiq")
_CTIME_AND_VERSION = struct.Struct("!16xq8xi32x")  # of a stat
_OPERATION = struct.Struct("!i?i")  # the header of an operation or a result: type, whether the list ends here, error
_RESULT = struct.Struct("!i?ii")  # the same, and the integer that follows: a path's length, a result's, or its error
REPLY_HEADER: Final[struct.Struct] = struct.Struct("!iqi")  # xid, zxid, error
_CONNECTED = struct.Struct("!iiq")  # protocol version, timeout in ms, session id
_EVENT = struct.Struct("!iii")  # type, state of the connection, length of the path
_NOTIFICATION = struct.Struct("!iiqiiii")  # the length of the frame, its header, and the same

_pack_int = _INT.pack
_pack_head = _RESULT.pack
_EPHEMERAL, _SEQUENTIAL, _CONTAINER = 1, 2, 4
_END = _OPERATION.pack(-1, 1, -1)
#: Prefixes of paths shorter than this are made once: a lookup takes a fifth of the time of packing.
_SHORT = 256


def _head(kind: int, length: int) -> bytes:
    """Return the bytes before the path of an operation: its header and the length of the path."""
    return _pack_head(kind, False, -1, length)  # noqa: FBT003 - more entries follow, in the encoding of jute


_CREATE_HEADS, _DELETE_HEADS, _READ_HEADS = (
    tuple(_head(kind, length) for length in range(_SHORT)) for kind in (CREATE, DELETE, GET_DATA)
)
_NO_WATCH = b"\0"

PING = struct.pack("!ii", PING_XID, PING_OPCODE)  # the whole request
#: The bytes that a path and its lengths add to an operation of a multi.
_CREATE_OVERHEAD = _OPERATION.size + 3 * _INT.size
_VERSIONED_OVERHEAD = _OPERATION.size + 2 * _INT.size
_SET_OVERHEAD = _OPERATION.size + 3 * _INT.size
_MULTI_OVERHEAD = 2 * _INT.size + _OPERATION.size


class Request(NamedTuple, Generic[T]):
    """The body of a request after its length and xid, and the reader of its reply."""

    body: bytes
    decode: Callable[[bytes, int], T]
    path: str | None = None
    pieces: Callable[[int], Pieces[T]] | None = None
    """Makes a reader for a reply's body of a given length; None: the body is decoded when it is complete."""

    @property
    def size(self) -> int:
        """The bytes that the server counts against jute.maxbuffer: the body and the xid."""
        return len(self.body) + _INT.size


@dataclass(frozen=True, slots=True)
class Connected:
    """The server's reply to the first packet of a connection; session id 0 means that the requested session has ended.

    Any holder of the password can resume the session, and end it.
    """

    session_id: int
    password: bytes = field(repr=False)
    timeout: float  # seconds


class Event(NamedTuple):
    """A watch's notification, as received."""

    kind: int
    connection_state: int
    path: str


# Errors


_CLASS_OF_CODE: dict[int, type[errors.NodeError]] = {
    -101: errors.NoNodeError,
    -102: errors.NoAuthError,
    -103: errors.BadVersionError,
    -110: errors.NodeExistsError,
    -111: errors.NotEmptyError,
    -114: errors.InvalidAclError,
    -120: errors.LocalSessionError,
    -125: errors.QuotaExceededError,
}
UNIMPLEMENTED, SESSION_EXPIRED, AUTH_FAILED, SESSION_MOVED, SASL_REQUIRED, THROTTLED = -6, -112, -115, -118, -124, -127


def error_of(code: int, path: str | None = None) -> errors.ZooKeeperError:
    """Return the exception for a server's error code."""
    if (error := _CLASS_OF_CODE.get(code)) is not None:
        return error(path)
    if code in {AUTH_FAILED, SASL_REQUIRED}:
        return errors.AuthFailedError("the server refused the credentials; check the user and the password")
    if code == SESSION_EXPIRED:
        return errors.SessionExpiredError("the server has ended the session")
    if code == THROTTLED:
        return errors.ThrottledError("the server is overloaded, and has dropped the request")
    return errors.ServerError(code, path)


# Encoding


def encode_string(text: str) -> bytes:
    """Encode a string in jute's format: its length in bytes, then UTF-8."""
    raw = text.encode()
    return _pack_int(len(raw)) + raw


def encode_acl(acl: Sequence[Acl]) -> bytes:
    """Encode an access control list."""
    entries = (_pack_int(int(a.permissions)) + encode_string(a.scheme) + encode_string(a.id) for a in acl)
    return _pack_int(len(acl)) + b"".join(entries)


def multi(
    operations: Sequence[Operation], *, chroot: str, acl: bytes, results: int | None = None
) -> Request[list[Result]]:
    """Encode an atomic multi. The reply has the results of its operations in order, or only the first ones."""
    root = chroot.encode()
    parts = [_pack_int(MULTI)]
    tails = [acl + _pack_int(flags) for flags in range(_CONTAINER + 1)]
    for operation in operations:
        path = operation[0].encode()
        if root or path[:1] != b"/":
            path = _rooted(operation.path, root)
        length = len(path)
        if isinstance(operation, Create):
            _path, data, ephemeral, sequential, container = operation
            if length < _SHORT and not container:
                head = _CREATE_HEADS[length]
            else:
                head = _head(CREATE_CONTAINER if container else CREATE, length)
            flags = _CONTAINER if container else ephemeral * _EPHEMERAL | sequential * _SEQUENTIAL
            tail = tails[flags]
            if type(operation) is not Create and isinstance(operation, CreateAs):
                tail = encode_acl(operation.acl) + _pack_int(flags)
            parts += (head, path, _pack_int(len(data)), data, tail)
        elif isinstance(operation, Delete):
            head = _DELETE_HEADS[length] if length < _SHORT else _head(DELETE, length)
            parts += (head, path, _pack_int(operation[1]))
        elif isinstance(operation, SetData):
            data = operation.data
            parts += (_head(SET_DATA, length), path, _pack_int(len(data)), data, _pack_int(operation.version))
        else:
            parts += (_head(CHECK, length), path, _pack_int(operation.version))
    parts.append(_END)

    def decode(reply: bytes, offset: int) -> list[Result]:
        return _decode_multi(reply, offset, operations, len(root), results)

    return Request(b"".join(parts), decode)


def multi_size(operations: Sequence[Operation], *, chroot: str, acl: bytes) -> int:
    """Return the bytes that a `multi` of these counts against jute.maxbuffer, without building it."""
    root = len(chroot.encode())
    size = _MULTI_OVERHEAD
    for operation in operations:
        size += root + (len(operation.path) if operation.path.isascii() else len(operation.path.encode()))
        if isinstance(operation, Create):
            own = encode_acl(operation.acl) if isinstance(operation, CreateAs) else acl
            size += _CREATE_OVERHEAD + len(operation.data) + len(own)
        elif isinstance(operation, SetData):
            size += _SET_OVERHEAD + len(operation.data)
        else:
            size += _VERSIONED_OVERHEAD
        if root and operation.path == "/":
            size -= 1
    return size


def get_data(path: str, *, chroot: str) -> Request[Node]:
    """Request the data and the stat of a znode."""
    return Request(_read_body(GET_DATA, path, chroot), _whole(_node), path)


def exists(path: str, *, chroot: str) -> Request[Stat]:
    """Request the stat of a znode."""
    return Request(_read_body(EXISTS, path, chroot), _whole(_stat), path)


def get_children(path: str, *, chroot: str) -> Request[list[str]]:
    """Request the names of a znode's children."""

    def pieces(size: int) -> Listing[list[str]]:
        names: list[str] = []
        return Listing(size, names.extend, names)

    return _in_pieces(_read_body(GET_CHILDREN, path, chroot), path, pieces)


def collect_children(path: str, collector: Callable[[], C], *, chroot: str) -> Request[Collected[C]]:
    """Request the names of a znode's children for a collector, which is made when the first of them arrive."""

    def pieces(size: int) -> Listing[Collected[C]]:
        collected = Collected(collector)
        return Listing(size, collected.take, collected)

    return _in_pieces(_read_body(GET_CHILDREN, path, chroot), path, pieces)


def _in_pieces(body: bytes, path: str, pieces: Callable[[int], Pieces[T]]) -> Request[T]:
    def decode(reply: bytes, offset: int) -> T:
        reading = pieces(len(reply) - offset)
        reading.feed(reply[offset:])
        return reading.finish()

    return Request(body, decode, path, pieces)


def multi_read(paths: Sequence[str], *, chroot: str) -> Request[list[Node | None]]:
    """Request the data and the stats of several znodes; None stands for a znode that does not exist."""
    return _multi_read(paths, chroot, _STAT, _node_of)


def multi_read_versioned(paths: Sequence[str], *, chroot: str) -> Request[list[Versioned | None]]:
    """Request the data of several znodes, and the fields of their stats that a claim needs; None as in `multi_read`."""
    return _multi_read(paths, chroot, _CTIME_AND_VERSION, _make_versioned)


def _multi_read(
    paths: Sequence[str], chroot: str, stat: struct.Struct, make: Callable[[tuple[Any, ...]], T]
) -> Request[list[T | None]]:
    root = chroot.encode()
    parts = [_pack_int(MULTI_READ)]
    for path in paths:
        raw = path.encode()
        if root or raw[:1] != b"/":
            raw = _rooted(path, root)
        length = len(raw)
        head = _READ_HEADS[length] if length < _SHORT else _head(GET_DATA, length)
        parts += (head, raw, _NO_WATCH)
    parts.append(_END)

    def decode(reply: bytes, offset: int) -> list[T | None]:
        return _decode_multi_read(reply, offset, paths, stat, make)

    return Request(b"".join(parts), decode)


def decode_nothing(_reply: bytes, _offset: int) -> None:
    """Ignore a reply's body."""


CLOSE: Request[None] = Request(_pack_int(CLOSE_SESSION), decode_nothing)


def full_path(path: str, chroot: str) -> str:
    """Return the path as the server knows it. Raises: ValueError: it does not start with a slash."""
    if not path.startswith("/"):
        raise ValueError(f"a znode's path starts with '/': {path!r} does not")
    return (chroot if path == "/" else chroot + path) or "/"


def _rooted(path: str, root: bytes) -> bytes:
    raw = path.encode()
    if raw[:1] != b"/":
        raise ValueError(f"a znode's path starts with '/': {path!r} does not")
    if not root:
        return raw
    return root if raw == b"/" else root + raw


def _read_body(opcode: int, path: str, chroot: str) -> bytes:
    raw = _rooted(path, chroot.encode())
    return b"".join((_pack_int(opcode), _pack_int(len(raw)), raw, _NO_WATCH))


# Decoding


def decode_connected(frame: bytes) -> Connected:
    """Decode the first frame of a connection. Servers before 3.4 omit the read-only flag at its end; it is not used."""
    try:
        _version, timeout, session_id = _CONNECTED.unpack_from(frame, 0)
    except struct.error as error:
        raise _cut(error) from error
    password, _ = _buffer(frame, _CONNECTED.size)
    return Connected(session_id, password, timeout / 1000)


def decode_event(frame: bytes, offset: int) -> Event:
    """Decode a watch's notification."""
    try:
        kind, state, _length = _EVENT.unpack_from(frame, offset)
    except struct.error as error:
        raise _cut(error) from error
    return Event(kind, state, _string(frame, offset + _EVENT.size - _INT.size)[0])


def decode_events(data: bytes, offset: int) -> tuple[list[Event], int]:
    """Decode the notifications of znodes that follow each other at an offset; return the offset after the last one.

    They end at an incomplete frame, at one of another kind, and at a path that is not ASCII: see `decode_event`.
    """
    events: list[Event] = []
    end = len(data) - _NOTIFICATION.size
    while offset <= end:
        frame, xid, _zxid, _error, kind, state, length = _NOTIFICATION.unpack_from(data, offset)
        after = offset + _NOTIFICATION.size + length
        if xid != WATCH_XID or kind <= 0 or length <= 0 or after != offset + _INT.size + frame or after > len(data):
            break
        raw = data[offset + _NOTIFICATION.size : after]
        if not raw.isascii():
            break
        events.append(Event(kind, state, raw.decode("ascii")))
        offset = after
    return events, offset


def decode_token(reply: bytes, offset: int) -> bytes:
    """Decode a SASL challenge; return b"" if the server sends none at the end of the exchange."""
    return _buffer(reply, offset)[0] if offset < len(reply) else b""


def _decode_multi(  # noqa: C901, PLR0912 - one branch a type of result; this loop is as hot as any
    reply: bytes, offset: int, operations: Sequence[Operation], chroot: int, wanted: int | None
) -> list[Result]:
    results: list[Result] = []
    failed: errors.MultiError | None = None
    unpack, header, bare, size = _RESULT.unpack_from, _RESULT.size, _OPERATION.size, len(reply)
    try:
        # Every result begins with a bare header, and most continue with an integer, a path's length or an error's code:
        # ``header`` is the size of both. A result without an integer is followed by at least the end, which is as long
        # as a bare header.
        while size - offset >= header:
            kind, done, _error, number = unpack(reply, offset)
            if done:
                break
            if len(results) == wanted and kind != -1:  # it was applied, and no further results are requested
                return results
            if kind == CREATE:
                start = offset + header
                offset = start + number
                if number < 0 or offset > size:
                    raise errors.ProtocolError(f"a length of {number} with {size - start} bytes left")
                results.append(reply[start + chroot : offset].decode() or "/")
            elif kind in (DELETE, CHECK):
                offset += bare
                results.append(None)
            elif kind == SET_DATA:
                stat, offset = _stat(reply, offset + bare)
                results.append(stat)
            elif kind == CREATE2:
                path, offset = _buffer(reply, offset + bare)
                _created, offset = _stat(reply, offset)
                results.append(path[chroot:].decode() or "/")
            elif kind == -1:
                offset += header
                # Results before the failing operation have code 0, later ones -2: only the first failure is named.
                # Stock aiozk drops these codes, and the paths above.
                if number == SESSION_EXPIRED:  # the server checks the session at each operation, not once per multi
                    raise error_of(number)
                if number != 0 and failed is None and len(results) < len(operations):
                    failed = errors.MultiError(len(results), error_of(number, operations[len(results)].path))
                results.append(None)
            else:
                raise errors.ProtocolError(f"a multi's result of unknown type {kind}")
        _kind, done, _error = _OPERATION.unpack_from(reply, offset)
        if not done:
            raise errors.ProtocolError("a multi's reply without an end")
    except UnicodeDecodeError as error:
        raise errors.ProtocolError("a string that is not UTF-8") from error
    except struct.error as error:
        raise _cut(error) from error
    if len(results) != len(operations):
        raise errors.ProtocolError(f"{len(results)} results for a multi of {len(operations)} operations")
    if failed is not None:
        raise failed
    return results


def _decode_multi_read(  # noqa: C901 - as hot as `_decode_multi`
    reply: bytes, offset: int, paths: Sequence[str], stat: struct.Struct, make: Callable[[tuple[Any, ...]], T]
) -> list[T | None]:
    nodes: list[T | None] = []
    refused: errors.ZooKeeperError | None = None
    unpack, unpack_stat, header, size, most = (
        _RESULT.unpack_from,
        stat.unpack_from,
        _RESULT.size,
        len(reply),
        len(paths),
    )
    try:
        # Every result begins with a header and an integer, the length of the data or an error's code; the end is bare.
        while size - offset >= header:
            kind, done, _error, number = unpack(reply, offset)
            if done:
                break
            offset += header
            if len(nodes) >= most:
                raise errors.ProtocolError(f"more results than the {len(paths)} of the multi-read")
            if kind == GET_DATA:
                end = offset + number if number > 0 else offset  # -1 stands for null
                if number < -1 or end > size:
                    raise errors.ProtocolError(f"a length of {number} with {size - offset} bytes left")
                nodes.append(make((reply[offset:end], *unpack_stat(reply, end))))
                offset = end + _STAT.size
            elif kind == -1:
                error = error_of(number, paths[len(nodes)])
                if refused is None and not isinstance(error, errors.NoNodeError):
                    refused = error
                nodes.append(None)
            else:
                raise errors.ProtocolError(f"a multi-read's result of unknown type {kind}")
        _kind, done, _error = _OPERATION.unpack_from(reply, offset)
        if not done:
            raise errors.ProtocolError("a multi-read's reply without an end")
    except struct.error as error:
        raise _cut(error) from error
    if refused is not None:
        raise refused
    if len(nodes) != len(paths):
        raise errors.ProtocolError(f"{len(nodes)} results for a multi-read of {len(paths)} paths")
    return nodes


def _whole(parse: Callable[[bytes, int], tuple[T, int]]) -> Callable[[bytes, int], T]:
    def decode(reply: bytes, offset: int) -> T:
        return parse(reply, offset)[0]

    return decode


# The constructors of the classes in C instead of Python: half a microsecond less for each znode read.
_make_stat: Callable[[tuple[int, ...]], Stat] = partial(tuple.__new__, Stat)  # pyright: ignore[reportUnknownMemberType]
_make_versioned: Callable[[tuple[Any, ...]], Versioned] = partial(tuple.__new__, Versioned)  # pyright: ignore[reportUnknownMemberType]


def _node_of(fields: tuple[Any, ...]) -> Node:
    return Node(fields[0], _make_stat(fields[1:]))


def _node(reply: bytes, offset: int) -> tuple[Node, int]:
    data, offset = _buffer(reply, offset)
    stat, offset = _stat(reply, offset)
    return Node(data, stat), offset


def _stat(reply: bytes, offset: int) -> tuple[Stat, int]:
    try:
        return _make_stat(_STAT.unpack_from(reply, offset)), offset + _STAT.size
    except struct.error as error:
        raise _cut(error) from error


def _buffer(reply: bytes, offset: int) -> tuple[bytes, int]:
    try:
        (length,) = _INT.unpack_from(reply, offset)
    except struct.error as error:
        raise _cut(error) from error
    offset += 4
    end = offset + max(length, 0)  # -1 stands for null
    if length < -1 or end > len(reply):
        raise errors.ProtocolError(f"a length of {length} with {len(reply) - offset} bytes left")
    return reply[offset:end], end


def _string(reply: bytes, offset: int) -> tuple[str, int]:
    raw, offset = _buffer(reply, offset)
    try:
        return raw.decode(), offset
    except UnicodeDecodeError as error:
        raise errors.ProtocolError("a string that is not UTF-8") from error


def _cut(error: struct.error) -> errors.ProtocolError:
    return errors.ProtocolError(f"a reply that ends too early: {error}")
