"""A listing is read while it comes in: its names are handed on in pieces, so that no more than a piece is ever held.

ZooKeeper answers a listing as one reply, however long. `Listing` reads the body of such a reply from whatever pieces
the transport delivers; `Collected` hands the names to a collector of the caller's.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from aiozkqueue.zookeeper.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.zookeeper.interface import Collector

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
C = TypeVar("C", bound="Collector")

_INT = struct.Struct("!i")
_ASCII = 128


class Pieces(Protocol[T_co]):
    """Reads the body of a reply while it arrives."""

    def feed(self, piece: bytes) -> None:
        """Read what has come, in order. Raises: ProtocolError."""
        ...

    def finish(self) -> T_co:
        """Return what was asked for; all has come. Raises: ProtocolError: it ends too early."""
        ...


class Listing(Generic[T]):
    """Reads names, and hands them on; ``result`` is what the request gives in the end.

    ``size`` is that of the body, bytes: no count and no length is believed beyond it.
    """

    def __init__(self, size: int, take: Callable[[list[str]], object], result: T) -> None:
        self._ahead = size
        """Bytes that have not come yet."""
        self._take = take
        self._result = result
        self._count: int | None = None
        """Names that are left; None: not known yet."""
        self._rest = bytearray()
        """The beginning of a name."""
        self._needed = _INT.size
        """The number of bytes from that position that are needed to continue."""

    def feed(self, piece: bytes) -> None:
        """Read the next piece. Raises: ProtocolError: an impossible count or length, or a name that is not UTF-8."""
        self._ahead -= len(piece)
        if self._count == 0:
            return
        data: bytes | bytearray = piece
        if self._rest:
            self._rest += piece
            if len(self._rest) < self._needed:
                return
            data, self._rest = self._rest, bytearray()
        offset = 0
        if self._count is None:
            if len(data) < _INT.size:
                self._rest += data
                return
            self._count, offset = self._counted(data), _INT.size
        names, offset = self._names(data, offset, self._count)
        self._count -= len(names)
        if self._count:
            self._rest += memoryview(data)[offset:]
        if names:
            self._take(names)

    def finish(self) -> T:
        """Return the result. Raises: ProtocolError: names are missing."""
        if self._count != 0:
            raise ProtocolError(f"a reply that ends too early: {self._count} names are missing")
        return self._result

    def _counted(self, data: bytes | bytearray) -> int:
        count: int = _INT.unpack_from(data)[0]
        left = len(data) - _INT.size + self._ahead
        if not -1 <= count <= left // _INT.size:
            raise ProtocolError(f"a count of {count} strings with {left} bytes left")
        return max(0, count)  # -1 stands for null

    def _names(self, data: bytes | bytearray, offset: int, count: int) -> tuple[list[str], int]:
        """Split the names that are whole; return them, and where the next begins."""
        alike = _alike(data, offset, count)
        if alike is not None:
            names, offset = alike
        else:
            names = []
        while len(names) < count:
            self._needed = _INT.size
            if len(data) - offset < _INT.size:
                break
            (length,) = _INT.unpack_from(data, offset)
            begin = offset + _INT.size
            end = begin + length
            if length < 1 or end > len(data) + self._ahead:  # no znode has an empty name
                raise ProtocolError(f"a name of {length} bytes with {len(data) - begin + self._ahead} bytes left")
            if end > len(data):
                self._needed = end - offset
                break
            try:
                names.append(data[begin:end].decode())
            except UnicodeDecodeError as error:
                raise ProtocolError("a string that is not UTF-8") from error
            offset = end
        return names, offset


class Collected(Generic[C]):
    """A listing's way into a collector; what the collector raises is raised where the listing is waited for.

    The connection, which is others' too, has nothing to do with that.
    """

    def __init__(self, collector: Callable[[], C]) -> None:
        self._begin = collector
        self._collector: C | None = None
        self._error: Exception | None = None

    def take(self, names: list[str]) -> None:
        """Hand names on, unless some have been refused."""
        if self._error is None:
            try:
                if self._collector is None:
                    self._collector = self._begin()
                self._collector.take(names)
            except Exception as error:  # noqa: BLE001 - `result` raises it
                self._error = error

    def result(self) -> C:
        """Return the collector. Raises: what it has raised."""
        if self._error is not None:
            raise self._error
        return self._begin() if self._collector is None else self._collector


def _alike(data: bytes | bytearray, offset: int, count: int) -> tuple[list[str], int] | None:
    """Split names that all have the same length, as a queue's have, by that length; None when they are not so.

    A deep queue's listing is read seven times as fast. A name holds no NUL, so that the length cannot be part of one.
    """
    if len(data) - offset < _INT.size:
        return None
    length = _INT.unpack_from(data, offset)[0]
    if not 0 < length < _ASCII:
        return None
    width = _INT.size + length
    whole = min(count, (len(data) - offset) // width)
    if whole <= 1:
        return None
    end = offset + whole * width
    prefix = data[offset : offset + _INT.size].decode()
    try:
        names = data[offset:end].decode().split(prefix)
    except UnicodeDecodeError:
        return None
    del names[0]  # nothing stands before the first length
    return (names, end) if len(names) == whole and set(map(len, names)) == {length} else None
