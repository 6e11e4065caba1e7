"""One server: its connections, its copy of the tree, its watches."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from aiozkqueue.zookeeper import wire
from aiozkqueue.zookeeper.errors import SessionExpiredError, ZooKeeperError
from aiozkqueue.zookeeper.interface import EventKind, WatchEvent
from aiozkqueue.zookeeper.paths import parent_of

from .requests import Fault, Kind, Notifications, Pipe, Request
from .tree import Change, Tree

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Sequence
    from contextvars import Context

    from .loop import Process
    from .requests import Delays


@dataclass(eq=False)
class ServerSession:
    """The leader's record of a ZooKeeper session."""

    id: int
    password: bytes
    timeout: float
    process: Process | None
    connection: ServerConnection | None = None
    received_at: float = 0.0
    """The time of the client's last sign of life, unless its connection is healthy."""
    over: bool = False
    """Whether the leader has decided that it ends."""


class Transaction(NamedTuple):
    """A transaction of the leader: its changes, and the answer to the client."""

    zxid: int
    time: int
    changes: list[Change]
    outcome: object
    session: ServerSession | None
    ends_session: bool


class Entry:
    """A request in the order of its connection. ``result`` is set when ``done``."""

    __slots__ = ("done", "fault", "request", "result")

    def __init__(self, request: Request, fault: Fault | None) -> None:
        self.request: Request = request
        self.fault: Fault | None = fault
        self.done: bool = False
        self.result: object = None


class ClientEnd(Protocol):
    """The client's end of a connection."""

    name: str
    loop: asyncio.AbstractEventLoop
    stream: Pipe[tuple[int, object]]

    def on_cut(self, why: str) -> None:
        """Handle the server's close of the connection."""
        ...


class Network(Protocol):
    """The ensemble, as its servers and its clients see it."""

    arrivals: int
    context: Context
    dead: bool
    delays: Delays
    loop: asyncio.AbstractEventLoop
    max_request: int
    newcomers: list[Newcomer]
    servers: list[Server]
    trace: list[tuple[object, ...]] | None
    tree: Tree

    @property
    def alone(self) -> bool:
        """Whether there is only one server."""
        ...

    @property
    def judge(self) -> Callable[[ServerConnection, Request], Fault | None]:
        """Decides the fault of a request."""
        ...

    def at_leader(self, server: Server, connection: ServerConnection, entry: Entry) -> None:
        """Order a request."""
        ...

    def linger(self, connection: ServerConnection, request: Request) -> None:
        """Apply a request after its connection is gone."""
        ...

    def welcome(self, server: Server) -> None:
        """Answer the clients whose new session a server has applied."""
        ...

    def open_session(self, timeout: float, process: Process | None) -> tuple[ServerSession, int]:
        """Create a session; return it with the zxid of its creation."""
        ...

    def resume_session(self, session_id: int, password: bytes) -> ServerSession | None:
        """Return a session that is alive."""
        ...


class ServerConnection:
    """The server's end of a connection."""

    def __init__(self, server: Server, session: ServerSession, client: ClientEnd) -> None:
        self.server = server
        self.session = session
        self.client = client
        self.open: bool = True
        self.silent: bool = False
        self._entries: deque[Entry] = deque()

    @property
    def healthy(self) -> bool:
        """Whether pings get through."""
        return self.open and not self.silent

    def arrive(self, request: Request) -> None:
        """Receive a request."""
        ensemble = self.server.ensemble
        if not self.healthy or ensemble.dead or not self.server.up:
            return
        ensemble.arrivals += 1
        fault = ensemble.judge(self, request)
        if ensemble.trace is not None:
            ensemble.trace.append((self.client.loop.time(), self.client.name, request, fault))
        if request.size > ensemble.max_request:
            self.cut("a request larger than the server takes")
            return
        if fault is Fault.SILENCE:
            self.silent = True
            self.session.received_at = self.client.loop.time()
            return
        if fault in (Fault.LOST_BEFORE, Fault.LATE):
            if fault is Fault.LATE:
                ensemble.linger(self, request)
            self.cut("lost before the request was applied")
            return
        entry = Entry(request, fault)
        self._entries.append(entry)
        if fault is Fault.DROPPED:
            entry.done, entry.result = True, wire.error_of(wire.THROTTLED)
            self.drain()
            return
        if request.kind in (Kind.MULTI, Kind.CLOSE, Kind.SYNC):
            self.server.forward(self, entry)
        self.drain()

    def drain(self) -> None:
        """Send the answers that are ready, in order."""
        entries, ensemble = self._entries, self.server.ensemble
        while entries and self.open:
            entry = entries[0]
            if not entry.done:
                if entry.request.kind in (Kind.MULTI, Kind.CLOSE, Kind.SYNC):
                    return
                entry.result = self.server.answer(self, entry.request)
                if self.session.over and self.server is ensemble.servers[0]:  # only the leader knows
                    entry.result = SessionExpiredError("the server has ended the session")
            entries.popleft()
            if entry.fault is Fault.LOST_AFTER:
                self.cut("lost after the request was applied")
            elif not self.silent:
                self.client.stream.send((self.server.tree.applied, entry.request.answer(entry.result)))

    def cut(self, why: str) -> None:
        """Close; the client is notified at once, unless nothing gets through."""
        if self.open:
            self._close()
            if not self.silent:
                self.client.on_cut(why)

    def on_client_closed(self) -> None:
        """Handle the client's close of the connection."""
        if self.open:
            self._close()

    def _close(self) -> None:
        if self.healthy:
            self.session.received_at = self.client.loop.time()
        self.open = False
        self._entries.clear()
        self.server.forget(self)


class Server:
    """One server: its copy of the tree, and the watches of its connections."""

    def __init__(self, ensemble: Network, name: str, tree: Tree) -> None:
        self.ensemble = ensemble
        self.name = name
        self.tree: Tree = tree
        self.up = True
        self.lag: float = 0.0
        """The additional delay, in seconds, of everything that it applies."""
        self.connections: dict[ServerConnection, None] = {}
        self._watches: dict[str, dict[ServerConnection, bool]] = {}
        self._pending: dict[int, tuple[ServerConnection, Entry]] = {}
        self._syncs: list[tuple[int, ServerConnection, Entry]] = []
        loop, delays = ensemble.loop, ensemble.delays
        self.to_leader: Pipe[Callable[[], None]] = Pipe(loop, _call, delays.hop, ensemble.context)
        self.from_leader: Pipe[Transaction] = Pipe(loop, self.apply, lambda: delays.hop() + self.lag, ensemble.context)

    # Requests

    def forward(self, connection: ServerConnection, entry: Entry) -> None:
        """Send a request on to the leader."""
        leader = self.ensemble.at_leader
        if self.ensemble.alone:
            leader(self, connection, entry)
        else:
            self.to_leader.send(lambda: leader(self, connection, entry))

    def expect(self, zxid: int, connection: ServerConnection, entry: Entry) -> None:
        """Answer a request when this transaction has been applied here."""
        self._pending[zxid] = (connection, entry)

    def catch_up(self, zxid: int, connection: ServerConnection, entry: Entry) -> None:
        """Answer a sync when everything up to here has been applied."""
        if self.tree.applied >= zxid:
            self._finish(connection, entry, None)
        else:
            self._syncs.append((zxid, connection, entry))

    def refuse(self, connection: ServerConnection, entry: Entry, error: ZooKeeperError) -> None:
        """Answer with an error outside a transaction."""
        self._finish(connection, entry, error)

    def answer(self, connection: ServerConnection, request: Request) -> object:
        """Answer a read, or arm a watch."""
        kind, argument = request.kind, request.argument
        read = _READS.get(kind)
        if read is not None:
            try:
                return read(self.tree, argument)
            except ZooKeeperError as error:
                return error
        if kind is Kind.REMOVE_WATCH:
            watchers = self._watches.get(argument, {})
            watchers.pop(connection, None)
            if not watchers:
                self._watches.pop(argument, None)
        else:
            for path, recursive in argument if kind is Kind.SET_WATCHES else (argument,):
                self._watches.setdefault(path, {})[connection] = recursive
        return None

    def forget(self, connection: ServerConnection) -> None:
        """Drop the watches of a connection that is gone."""
        self.connections.pop(connection, None)
        for path in [path for path, watchers in self._watches.items() if connection in watchers]:
            watchers = self._watches[path]
            del watchers[connection]
            if not watchers:
                del self._watches[path]

    # Transactions

    def apply(self, transaction: Transaction) -> None:
        """Apply a transaction, notify the watches, and answer the requests that wait for it."""
        zxid = transaction.zxid
        if self.tree is not self.ensemble.tree:
            self.tree.replay(transaction.changes, zxid, transaction.time)
        if self._watches:
            self._notify(transaction.changes, together=zxid % 2 == 0)
        session = transaction.session
        if zxid in self._pending:
            connection, entry = self._pending.pop(zxid)
            self._finish(connection, entry, transaction.outcome)
        if transaction.ends_session and session is not None:
            carrier = session.connection
            if carrier is not None and carrier.server is self:
                carrier.cut("the session has ended")
        if self._syncs:
            due = [sync for sync in self._syncs if sync[0] <= zxid]
            self._syncs = [sync for sync in self._syncs if sync[0] > zxid]
            for _, connection, entry in due:
                self._finish(connection, entry, None)
        if self.ensemble.newcomers:
            self.ensemble.welcome(self)

    def _finish(self, connection: ServerConnection, entry: Entry, result: object) -> None:
        entry.done, entry.result = True, result
        connection.drain()

    def _notify(self, changes: Sequence[Change], *, together: bool) -> None:
        """Notify the watches; a real connection may deliver the events of a transaction at once or one by one."""
        joined: defaultdict[ServerConnection, list[WatchEvent]] = defaultdict(list)
        for change in changes:
            for connection, event in self._events(change):
                if together:
                    joined[connection].append(event)
                else:
                    self._send(connection, [event])
        for connection, events in joined.items():
            self._send(connection, events)

    def _events(self, change: Change) -> Iterator[tuple[ServerConnection, WatchEvent]]:
        event = WatchEvent(change.kind, change.path)
        watching: dict[ServerConnection, None] = {}
        above, exact = change.path, True
        while True:
            for connection, recursive in self._watches.get(above, {}).items():
                if exact or recursive:
                    watching[connection] = None
            if above == "/":
                break
            above, exact = parent_of(above), False
        for connection in watching:
            yield connection, event
        if change.kind is not EventKind.CHANGED:
            parent = parent_of(change.path)
            for connection, recursive in self._watches.get(parent, {}).items():
                if not recursive:
                    yield connection, WatchEvent(EventKind.CHILDREN, parent)

    def _send(self, connection: ServerConnection, events: list[WatchEvent]) -> None:
        if connection.healthy:
            connection.client.stream.send((0, Notifications(events)))


class Newcomer(NamedTuple):
    """A client that waits at a server for its new session."""

    server: Server
    zxid: int
    welcome: Callable[[], None]
    refuse: Callable[[], None]


_READS: dict[Kind, Callable[[Tree, Any], object]] = {
    Kind.READ: Tree.read,
    Kind.READ_MANY: Tree.read_many,
    Kind.CHILDREN: Tree.children,
    Kind.EXISTS: Tree.exists,
}


def _call(what: Callable[[], None]) -> None:
    what()
