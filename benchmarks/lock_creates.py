"""Counts the locks that sessions behind a proxy request, from the bytes they send."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from aiozkqueue.testing.frames import Opcode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiozkqueue.testing import ZooKeeperProxy
    from aiozkqueue.testing.frames import Request

_INT: Final = struct.Struct(">i")
_MULTI_HEADER: Final = struct.Struct(">i?i")
_CREATES: Final = frozenset({Opcode.CREATE, Opcode.CREATE2, Opcode.CREATE_CONTAINER})
_WITH_DATA: Final = _CREATES | {Opcode.SET_DATA}


class LockCreates:
    """Counts the creates below a znode that pass a proxy, refused ones included."""

    def __init__(self, proxy: ZooKeeperProxy, locks: str) -> None:
        self._prefix = f"{locks}/"
        self.count: int = 0
        proxy.hold_request(self._look)

    def _look(self, request: Request) -> bool:
        if request.opcode == Opcode.MULTI:
            operations = written_by(request.body)
            self.count += sum(op in _CREATES and path.startswith(self._prefix) for op, path, _ in operations)
        return False  # nothing is held


def written_by(body: bytes) -> Iterator[tuple[int, str, bytes]]:
    """Yield the operations of a multi: opcode, path and data."""
    at = 0
    while True:
        opcode, done, _ = _MULTI_HEADER.unpack_from(body, at)
        at += _MULTI_HEADER.size
        if done:
            return
        path, at = _buffer(body, at)
        data = b""
        if opcode in _WITH_DATA:
            data, at = _buffer(body, at)
        if opcode in _CREATES:
            (acls,) = _INT.unpack_from(body, at)
            at += _INT.size
            for _ in range(acls):
                _, at = _buffer(body, at + _INT.size)
                _, at = _buffer(body, at)
        at += _INT.size  # flags, or a version
        yield opcode, path.decode(), data


def _buffer(body: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _INT.unpack_from(body, at)
    at += _INT.size
    end = at + max(0, length)
    return body[at:end], end
