"""The ends of sessions, the number of elections, and the bundles, as read from the servers' own files.

A ZooKeeper log file is a header of 16 bytes, then records of a checksum, a length, a transaction and an end mark; a
transaction begins with session, xid, zxid, time and type. The upper half of a zxid counts the elections.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_HEADER = 16
_LENGTH = struct.Struct(">qi")
_TRANSACTION = struct.Struct(">qiqqi")
_CLOSE_SESSION = -11
_BUNDLE = re.compile(rb"bundle-m\d+-s\w{18}-l\w{18}-i\w{18}-\d{10}")


@dataclass
class ServerRecord:
    """The contents of the logs of all servers."""

    ended: dict[int, float] = field(default_factory=dict[int, float])
    """The time when each session ended, in seconds since 1970."""
    expired: set[int] = field(default_factory=set[int])
    """The sessions that the server ended itself."""
    epochs: set[int] = field(default_factory=set[int])
    """The epochs of the leaders that wrote after their election."""
    transactions: set[int] = field(default_factory=set[int])
    bundles: set[str] = field(default_factory=set[str])
    """The names of the stored bundles."""


def read(folders: Iterable[Path]) -> ServerRecord:
    """Read the logs of these servers' folders."""
    record = ServerRecord()
    logs: list[set[tuple[int, int, int, int, int]]] = []
    for folder in folders:
        log = set[tuple[int, int, int, int, int]]()
        for path in (folder / "data" / "version-2").glob("log.*"):
            data = path.read_bytes()
            log.update(_transactions(data))
            record.bundles.update(name.decode() for name in _BUNDLE.findall(data))
        logs.append(log)
    written = Counter(transaction for log in logs for transaction in log)
    for (session, xid, zxid, time, kind), copies in written.items():
        if copies <= len(logs) // 2:
            continue  # a deposed leader wrote it, and no other server has it
        record.epochs.add(zxid >> 32)
        record.transactions.add(zxid)
        if kind == _CLOSE_SESSION:
            record.ended[session] = time / 1000
            if xid == 0:  # the server's own request, not a client's
                record.expired.add(session)
    return record


def _transactions(data: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    position = _HEADER
    while position + _LENGTH.size + _TRANSACTION.size <= len(data):
        _, length = _LENGTH.unpack_from(data, position)
        if length < _TRANSACTION.size:
            return  # the padding after the last record
        start = position + _LENGTH.size
        session, xid, zxid, time, kind = _TRANSACTION.unpack_from(data, start)
        yield session, xid, zxid, time, kind
        position = start + length + 1
