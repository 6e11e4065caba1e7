"""Reads a listing while it arrives, and passes on its names in pieces, so that only one piece is held in memory.

ZooKeeper answers a listing as one reply, however long. `Listing` reads the body of such a reply from the pieces that
the transport delivers; `Collected` passes the names to the caller's collector.
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
        """Read the bytes received, in order. Raises: ProtocolError."""
        ...

    def finish(self) -> T_co:
        """Return the result after the last byte. Raises: ProtocolError: the reply ends too early."""
        ...


class Listing(Generic[T]):
    """Reads names and passes them on; ``result`` makes the result of the request.

    ``size`` is the size of the body, bytes; counts and lengths beyond it are refused.
    """

    def __init__(self, size: int, take: Callable[[list[str]], object], result: T) -> None:
        self._ahead = size
        """The number of bytes still to come."""
        self._take = take
        self._result = result
        self._count: int | None = None
        """The number of names left; None: not known yet."""
        self._remainder = bytearray()
        """The beginning of an incomplete name."""
        self._needed = _INT.size
        """The number of bytes from that position that are needed to continue."""

    def feed(self, piece: bytes) -> None:
        """Read the next piece. Raises: ProtocolError: an impossible count or length, or a name that is not UTF-8."""
        self._ahead -= len(piece)
        if self._count == 0:
            return
        data: bytes | bytearray = piece
        if self._remainder:
            self._remainder += piece
            if len(self._remainder) < self._needed:
                return
            data, self._remainder = self._remainder, bytearray()
        offset = 0
        if self._count is None:
            if len(data) < _INT.size:
                self._remainder += data
                return
            self._count, offset = self._counted(data), _INT.size
        names, offset = self._names(data, offset, self._count)
        self._count -= len(names)
        if self._count:
            self._remainder += memoryview(data)[offset:]
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
        """Split the complete names; return them, and the offset of the next one."""
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
            if length < 1 or end > len(data) + self._ahead:  # a znode's name is never empty
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
    """Passes a listing to a collector. The collector's errors are raised in the caller that awaits the listing.

    They do not affect the connection, which other requests share.
    """

    def __init__(self, collector: Callable[[], C]) -> None:
        self._begin = collector
        self._collector: C | None = None
        self._error: Exception | None = None

    def take(self, names: list[str]) -> None:
        """Pass on names, unless the collector has raised an error."""
        if self._error is None:
            try:
                if self._collector is None:
                    self._collector = self._begin()
                self._collector.take(names)
            except Exception as error:  # noqa: BLE001 - `result` raises it
                self._error = error

    def result(self) -> C:
        """Return the collector. Raises: the error that it has raised."""
        if self._error is not None:
            raise self._error
        return self._begin() if self._collector is None else self._collector


def _alike(data: bytes | bytearray, offset: int, count: int) -> tuple[list[str], int] | None:
    """Split names of equal length, such as a queue's, at that length; return None if the lengths differ.

    This reads a deep queue's listing seven times as fast. A name has no NUL, so it cannot contain the length bytes.
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
    del names[0]  # nothing precedes the first length
    return (names, end) if len(names) == whole and set(map(len, names)) == {length} else None
