"""An asyncio ZooKeeper client on aiozk's protocol records. Nothing in here knows about queues.

The modules, from the outside in:

- `interface` is the narrow protocol that the layers above program against, `errors` what it raises, `reading` what
  is read through it in more than one request, and `sending` what is sent through it until it is answered.
- `client` implements it; `connect` opens one.
- `session` keeps a ZooKeeper session on one connection after another: `states` is its state machine, `handshake` how a
  connection comes to carry it, `heartbeat` what keeps it alive, `watches` what is armed again,
  `outage` when a loss that lasts is logged.
- `connection` is one socket: frames in, frames out, requests pipelined in a FIFO.
- `wire` and `records` are the bytes, `listings` those of a reply that is read while it comes in, `sasl` one exchange
  of them, `hosts` and `auth` the options. All pure.

Data goes out through `client` (an operation) → `session` (is there a connection, is it the right session) → `wire`
(bytes) → `connection` (one write a loop tick), and comes in through ``Connection.data_received`` → a decoder → the
future that the caller awaits, or `watches` for a notification.

Imports run downwards in that order; from the rest of the package only `aiozkqueue.errors`.
"""

from __future__ import annotations

from aiozkqueue.zookeeper.auth import Acl, Auth, Permission
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
    RequestTooLargeError,
    ServerError,
    SessionExpiredError,
    ZooKeeperError,
)
from aiozkqueue.zookeeper.hosts import parse_hosts
from aiozkqueue.zookeeper.interface import (
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
    Stat,
    State,
    Versioned,
    Watch,
    WatchEvent,
    ZooKeeper,
    new_create,
    new_delete,
)
from aiozkqueue.zookeeper.reading import PAGE, below, read_apart, read_pages
from aiozkqueue.zookeeper.sending import until_answered

__all__ = [
    "PAGE",
    "Acl",
    "Auth",
    "AuthFailedError",
    "BadVersionError",
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
    "RequestTooLargeError",
    "Result",
    "ServerError",
    "SessionExpiredError",
    "SetData",
    "Stat",
    "State",
    "Versioned",
    "Watch",
    "WatchEvent",
    "ZooKeeper",
    "ZooKeeperClient",
    "ZooKeeperError",
    "below",
    "connect",
    "new_create",
    "new_delete",
    "parse_hosts",
    "read_apart",
    "read_pages",
    "until_answered",
]
