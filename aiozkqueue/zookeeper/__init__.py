"""An asyncio ZooKeeper client on aiozk's protocol records. No module here depends on queues.

The modules, from the outside in:

- `interface` is the narrow protocol that the layers above use, `errors` has the errors that it raises, `reading` has
  reads of more than one request, `sending` repeats requests until they are answered, and `call_limit` ends a call while
  no server answers.
- `client` implements it; `connect` opens a client.
- `session` keeps a ZooKeeper session on one connection after another: `states` is its state machine, `handshake` makes
  a connection carry it, `lookups` finds the addresses of servers, `request_limit` the size of their largest request,
  `heartbeat` keeps the session alive, `watches` holds the watches to arm again, and `outage` logs the time without a
  connection.
- `connection` is one socket: frames in, frames out, requests pipelined in a FIFO. `dropping` slows down requests that
  an overloaded server drops. `tls_files` has the certificates.
- `threads` runs the blocking calls of both: the lookup of a name, and the reading of certificates.
- `wire` and `records` encode and decode requests, `listings` decodes a long reply while it arrives, `sasl` is one
  authentication exchange, `tls_errors` describes errors, `hosts` and `auth` are options, and `paths` has the parents
  of paths. All of these are pure.

Data goes out through `client` (an operation) → `session` (is there a connection, is it the right session) → `wire`
(bytes) → `connection` (one write a loop tick), and comes in through ``Connection.data_received`` → a decoder → the
future that the caller awaits, or `watches` for a notification.

Imports run downwards in that order; from the rest of the package only `aiozkqueue.errors` and `aiozkqueue.moments`.
"""

from __future__ import annotations

from aiozkqueue.zookeeper.auth import Acl, Auth, Permission
from aiozkqueue.zookeeper.call_limit import CallLimit, changes, current_call, reads
from aiozkqueue.zookeeper.client import ZooKeeperClient, connect
from aiozkqueue.zookeeper.errors import (
    AuthFailedError,
    BadVersionError,
    ClientClosedError,
    ConnectionLossError,
    MultiError,
    NoAuthError,
    NodeError,
    NodeExistsError,
    NoNodeError,
    NotConnectedError,
    NotEmptyError,
    ProtocolError,
    QuotaExceededError,
    RequestTooLargeError,
    ServerError,
    SessionExpiredError,
    ThrottledError,
    ZooKeeperError,
    refuses_credentials,
)
from aiozkqueue.zookeeper.hosts import parse_hosts
from aiozkqueue.zookeeper.interface import (
    NO_VERSION,
    Answer,
    Check,
    Collector,
    Create,
    CreateAs,
    Delete,
    EventKind,
    Node,
    Operation,
    Result,
    SetData,
    Silence,
    Stat,
    State,
    TlsFailure,
    Versioned,
    Watch,
    WatchEvent,
    ZooKeeper,
    new_create,
    new_delete,
)
from aiozkqueue.zookeeper.paths import parent_of
from aiozkqueue.zookeeper.reading import PAGE, below, read_latest, read_pages, read_separately
from aiozkqueue.zookeeper.sending import apply_until_answered, until_answered
from aiozkqueue.zookeeper.tls_files import RenewedContext, TlsFiles

__all__ = [
    "NO_VERSION",
    "PAGE",
    "Acl",
    "Answer",
    "Auth",
    "AuthFailedError",
    "BadVersionError",
    "CallLimit",
    "Check",
    "ClientClosedError",
    "Collector",
    "ConnectionLossError",
    "Create",
    "CreateAs",
    "Delete",
    "EventKind",
    "MultiError",
    "NoAuthError",
    "NoNodeError",
    "Node",
    "NodeError",
    "NodeExistsError",
    "NotConnectedError",
    "NotEmptyError",
    "Operation",
    "Permission",
    "ProtocolError",
    "QuotaExceededError",
    "RenewedContext",
    "RequestTooLargeError",
    "Result",
    "ServerError",
    "SessionExpiredError",
    "SetData",
    "Silence",
    "Stat",
    "State",
    "ThrottledError",
    "TlsFailure",
    "TlsFiles",
    "Versioned",
    "Watch",
    "WatchEvent",
    "ZooKeeper",
    "ZooKeeperClient",
    "ZooKeeperError",
    "apply_until_answered",
    "below",
    "changes",
    "connect",
    "current_call",
    "new_create",
    "new_delete",
    "parent_of",
    "parse_hosts",
    "read_latest",
    "read_pages",
    "read_separately",
    "reads",
    "refuses_credentials",
    "until_answered",
]
