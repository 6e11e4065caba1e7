"""Edits the snapshot of a stopped server, to bring a counter to its end without two billion creates.

The layout is that of ZooKeeper 3.9: a header, the sessions, the ACLs, the znodes, each with its persistent stat, and a
trailer; several places hold the Adler-32 of all preceding bytes.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_HEADER: Final = struct.Struct(">4siq")
_SESSION: Final = struct.Struct(">qi")
# czxid, mzxid, ctime, mtime, version; cversion; aversion, ephemeral owner, pzxid
_BEFORE: Final = struct.Struct(">qqqqi")
_AFTER: Final = struct.Struct(">iqq")


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def take(self, layout: struct.Struct) -> int:
        """Read the first value of a record, and advance past it."""
        value: int = layout.unpack_from(self._data, self.at)[0]
        self.at += layout.size
        return value

    def buffer(self) -> bytes:
        start = self.at + _INT.size
        self.at = start + max(0, self.take(_INT))
        return self._data[start : self.at]


def set_counters(version_2: Path, counters: dict[str, int], versions: dict[str, int]) -> None:
    """Set the sequence number for the next sequential child of a znode, and the data versions of znodes.

    ``version_2`` is the data folder of a server that was started and stopped after the znodes were created, so that
    its newest snapshot contains them all.
    """
    newest = max(version_2.glob("snapshot.*"), key=lambda path: int(path.suffix[1:], 16))
    data = bytearray(newest.read_bytes())
    places, end = _znodes(bytes(data))
    seals = [at for at in range(end, len(data) - _LONG.size + 1) if _is_seal(data, at)]
    assert seals
    for path, counter in counters.items():
        _INT.pack_into(data, places[path], counter)
    for path, version in versions.items():
        _INT.pack_into(data, places[path] - _INT.size, version)
    for at in seals:
        _LONG.pack_into(data, at, zlib.adler32(data[:at]))
    newest.write_bytes(data)


def _is_seal(data: bytearray, at: int) -> bool:
    return bool(_LONG.unpack_from(data, at)[0] == zlib.adler32(data[:at]))


def _znodes(data: bytes) -> tuple[dict[str, int], int]:
    """Return the offset of each znode's counter, and the end of the znodes."""
    reader = _Reader(data)
    assert data[:4] == b"ZKSN"
    reader.take(_HEADER)
    for _ in range(reader.take(_INT)):
        reader.take(_SESSION)
    for _ in range(reader.take(_INT)):
        reader.take(_LONG)
        for _ in range(reader.take(_INT)):
            reader.take(_INT)
            reader.buffer()
            reader.buffer()
    places: dict[str, int] = {}
    while (path := reader.buffer()) != b"/":
        reader.buffer()
        reader.take(_LONG)
        reader.take(_BEFORE)
        places[path.decode()] = reader.at
        reader.take(_INT)
        reader.take(_AFTER)
    return places, reader.at
