"""The rare requests, built from aiozk's protocol records; missing ones are declared in the same way."""

# pyright: basic, reportMissingTypeStubs=false
# aiozk has no types: this module checks its results before it returns them.

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from aiozk import protocol
from aiozk.protocol.primitives import Buffer, Int, Long, UString, Vector
from aiozk.protocol.request import Request as Record

from aiozkqueue.moments import milliseconds_in
from aiozkqueue.zookeeper.auth import Acl, Permission
from aiozkqueue.zookeeper.errors import ProtocolError
from aiozkqueue.zookeeper.wire import AUTH_XID, Request, decode_nothing, decode_token

_ANY_WATCH = 3


class _AddWatch(Record):  # type: ignore[misc]  # aiozk has no types
    opcode = 106
    parts = (("path", UString), ("mode", Int))


class _SetWatches2(Record):  # type: ignore[misc]  # aiozk has no types
    opcode = 105
    parts = (
        ("relative_zxid", Long),
        ("data_watches", Vector.of(UString)),
        ("exist_watches", Vector.of(UString)),
        ("child_watches", Vector.of(UString)),
        ("persistent_watches", Vector.of(UString)),
        ("recursive_watches", Vector.of(UString)),
    )


class _Sasl(Record):  # type: ignore[misc]  # aiozk has no types
    """aiozk's own SASLRequest cannot be rendered: its ``parts`` is not a tuple of pairs."""

    opcode = 102
    parts = (("token", Buffer),)


class WatchSet(NamedTuple):
    """Paths whose persistent watches are armed again after a reconnection."""

    persistent: list[str]
    recursive: list[str]


def connect(*, session_id: int, password: bytes, timeout: float, last_zxid: int) -> bytes:
    """Return the first packet of a connection; ``timeout`` is in seconds."""
    record = protocol.ConnectRequest(
        protocol_version=0,
        last_seen_zxid=last_zxid,
        timeout=milliseconds_in(timeout),
        session_id=session_id,
        password=password,
        read_only=False,
    )
    return bytes(record.serialize())


def auth(scheme: str, credential: bytes) -> bytes:
    """Return the packet of credentials, with its reserved xid."""
    return bytes(protocol.AuthRequest(type=0, scheme=scheme, auth=credential).serialize(AUTH_XID))


def sasl(token: bytes) -> Request[bytes]:
    """Request a step of a SASL exchange; the reply is the server's next token."""
    return Request(bytes(_Sasl(token=token).serialize()), decode_token)


def sync(full_path: str) -> Request[None]:
    """Request that the server catches up with the leader."""
    return Request(bytes(protocol.SyncRequest(path=full_path).serialize()), decode_nothing, full_path)


def get_acl(full_path: str) -> Request[list[Acl]]:
    """Request the ACL of a znode; for a client that may not change it, credentials are masked."""
    return Request(bytes(protocol.GetACLRequest(path=full_path).serialize()), _decode_acl, full_path)


def _decode_acl(reply: bytes, offset: int) -> list[Acl]:
    try:
        response: Any = protocol.GetACLResponse.deserialize(reply[offset:])
        return [
            Acl(str(entry.id.scheme), str(entry.id.id or ""), Permission(entry.perms & Permission.ALL))
            for entry in response.acl
        ]
    except (struct.error, ValueError, TypeError, AttributeError) as error:
        raise ProtocolError(f"an access control list that cannot be read: {error}") from error


def add_watch(full_path: str, *, recursive: bool) -> Request[None]:
    """Request a persistent watch."""
    return Request(bytes(_AddWatch(path=full_path, mode=int(recursive)).serialize()), decode_nothing, full_path)


def remove_watches(full_path: str) -> Request[None]:
    """Request that all watches of this session are removed from a path."""
    record = protocol.RemoveWatchesRequest(path=full_path, type=_ANY_WATCH)
    return Request(bytes(record.serialize()), decode_nothing, full_path)


def set_watches(last_zxid: int, watches: WatchSet) -> Request[None]:
    """Request persistent watches again. Only watches of other kinds, which this client lacks, need ``last_zxid``."""
    record = _SetWatches2(
        relative_zxid=last_zxid,
        data_watches=[],
        exist_watches=[],
        child_watches=[],
        persistent_watches=watches.persistent,
        recursive_watches=watches.recursive,
    )
    return Request(bytes(record.serialize()), decode_nothing)
