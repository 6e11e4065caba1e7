"""The servers: one leader that orders the writes, and followers that apply them in that order, each with its own delay.

The client's server sends a write to the leader. The leader checks it against all earlier writes, assigns a zxid and,
once a majority has the write, lets every server apply it. The client's server answers after it has applied the write.
The client's server answers a read after the earlier writes of the same connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import Context
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiozkqueue.zookeeper.errors import MultiError, ServerError, SessionExpiredError
from aiozkqueue.zookeeper.wire import SESSION_MOVED

from .loop import EPOCH
from .requests import Delays, Fault, Kind, Pipe, Request, no_delays
from .server import Newcomer, Server, ServerSession, Transaction
from .tree import Tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from .loop import Process
    from .server import Entry, ServerConnection


def no_fault(_: ServerConnection, __: Request) -> Fault | None:
    """Return no fault, for an ensemble without faults."""
    return None


def never(_: Request) -> bool:
    """Return False: no late request is applied after its session has moved on."""
    return False


@dataclass
class Ensemble:
    """One or more servers, and the state that they share. Made by `simulated`."""

    random: Random
    size: int = 1
    delays: Delays = field(default_factory=no_delays)
    judge: Callable[[ServerConnection, Request], Fault | None] = no_fault
    strays: Callable[[Request], bool] = never
    """Whether a late request is applied even after its session has come back on another connection.

    A real ensemble refuses them because it applies the requests of a session in order.
    """
    max_request: int = 1_048_575
    tick: float = 2.0
    offset: float = 0.0
    """Seconds by which the servers' clocks are ahead of the clients'."""
    trace: list[tuple[object, ...]] | None = None
    """Receives each request that reaches a server, with its fault."""
    on_session_over: Callable[[int, bool], object] | None = None
    """Called for each ZooKeeper session that ends, with whether its client had closed it."""

    def __post_init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.context: Context = Context()
        self.epoch: int = 1
        self.counter: int = 0
        self.arrivals: int = 0
        self.dead: bool = False
        self.tree: Tree = Tree()
        """The leader's transactions, committed or not."""
        self.sessions: dict[int, ServerSession] = {}
        self.newcomers: list[Newcomer] = []
        self._sessions_made = 0
        self._outstanding: deque[Transaction] = deque()
        self._committing: Pipe[Transaction] = Pipe(self.loop, self._commit, self.delays.commit, self.context)
        self.committed: int = 0
        trees = [self.tree] if self.size == 1 else [Tree() for _ in range(self.size)]
        self.servers: list[Server] = [Server(self, f"server-{number}", tree) for number, tree in enumerate(trees, 1)]

    @property
    def alone(self) -> bool:
        """Whether there is only one server."""
        return self.size == 1

    def now(self) -> int:
        """Return the leader's time, ms since 1970."""
        return int((EPOCH + self.offset + self.loop.time()) * 1000)

    # Sessions

    def open_session(self, timeout: float, process: Process | None) -> tuple[ServerSession, int]:
        """Create a session; return it and the zxid of its creation."""
        self._sessions_made += 1
        timeout = min(max(timeout, 2 * self.tick), 20 * self.tick)
        session = ServerSession(
            (1 << 56) + self._sessions_made, self.random.randbytes(16), timeout, process, received_at=self.loop.time()
        )
        self.sessions[session.id] = session
        zxid = self._next_zxid()
        self.tree.applied = zxid
        self._propose(Transaction(zxid, self.now(), [], None, None, ends_session=False))
        self.loop.call_later(timeout, self._expire_if_silent, session, context=self.context)
        return session, zxid

    def resume_session(self, session_id: int, password: bytes) -> ServerSession | None:
        """Return a live session."""
        session = self.sessions.get(session_id)
        return None if session is None or session.over or session.password != password else session

    def expire(self, session_id: int) -> None:
        """Expire a session, as when its client has been silent for too long."""
        session = self.sessions.get(session_id)
        if session is not None and not session.over:
            self._end(session)

    def _expire_if_silent(self, session: ServerSession) -> None:
        if session.over or self.dead:
            return
        now = self.loop.time()
        connection, process = session.connection, session.process
        if connection is not None and connection.healthy:
            session.received_at = now if process is None or process.paused_since is None else process.paused_since
        left = session.received_at + session.timeout - now
        if left > _MOMENT:
            self.loop.call_later(left, self._expire_if_silent, session, context=self.context)
        else:
            self._end(session)

    def _end(self, session: ServerSession) -> Transaction | None:
        session.over = True
        owned = self.tree.ephemerals.get(session.id, {})
        if sum(len(path.encode()) + 4 for path in owned) > 2 * self.max_request:
            self.die()
            return None
        del self.sessions[session.id]
        return self._order_end(session, closed=False)

    def _order_end(self, session: ServerSession, *, closed: bool) -> Transaction:
        if self.on_session_over is not None:
            self.on_session_over(session.id, closed)
        zxid, time = self._next_zxid(), self.now()
        changes = self.tree.end_session(session.id, zxid, time)
        transaction = Transaction(zxid, time, changes, None, session, ends_session=True)
        self._propose(transaction)
        return transaction

    def die(self) -> None:
        """Take every server down permanently, as an oversized transaction does."""
        self.dead = True
        for server in self.servers:
            self.stop(server)

    def stop(self, server: Server) -> None:
        """Take a server down."""
        server.up = False
        for connection in list(server.connections):
            connection.cut("the server has gone")

    # Writes

    def at_leader(self, server: Server, connection: ServerConnection, entry: Entry) -> None:
        """Order a request, or refuse it."""
        session, request = connection.session, entry.request
        if request.kind is Kind.SYNC:
            # It waits for the writes committed on its arrival, not for those only proposed.
            server.catch_up(self.committed, connection, entry)
            return
        if session.over:
            server.refuse(connection, entry, SessionExpiredError("the server has ended the session"))
            return
        if session.connection is not connection:
            server.refuse(connection, entry, ServerError(SESSION_MOVED))
            return
        if request.kind is Kind.CLOSE:
            session.over = True
            del self.sessions[session.id]
            server.expect(self._following_zxid, connection, entry)
            self._order_end(session, closed=True)
            return
        server.expect(self._following_zxid, connection, entry)
        self._order_multi(session, request)

    def linger(self, connection: ServerConnection, request: Request) -> None:
        """Let a request reach the leader later, on a connection that is gone by then."""
        session = connection.session

        def come() -> None:
            if request.kind is not Kind.MULTI or session.over or self.dead:
                return
            if session.connection is connection or self.strays(request):
                if self.trace is not None:
                    self.trace.append((self.loop.time(), "late", request, None))
                self._order_multi(session, request)

        self.loop.call_later(self.delays.lingering(), come, context=self.context)

    def _order_multi(self, session: ServerSession, request: Request) -> None:
        zxid, time = self._next_zxid(), self.now()
        try:
            outcome, changes = self.tree.write(request.argument, session.id, zxid, time)
        except MultiError as error:
            self.tree.applied = zxid  # a refusal is a transaction, too
            self._propose(Transaction(zxid, time, [], error, session, ends_session=False))
            return
        self._propose(Transaction(zxid, time, changes, outcome, session, ends_session=False))

    @property
    def _zxid(self) -> int:
        return self.epoch << 32 | self.counter

    @property
    def _following_zxid(self) -> int:
        return self.epoch << 32 | self.counter + 1

    def _next_zxid(self) -> int:
        self.counter += 1
        return self._zxid

    def _propose(self, transaction: Transaction) -> None:
        if self.alone:
            self.committed = transaction.zxid
            self.servers[0].apply(transaction)
            return
        self._outstanding.append(transaction)
        self._committing.send(transaction)

    def _commit(self, transaction: Transaction) -> None:
        if not self._outstanding or self._outstanding[0] is not transaction:
            return  # dropped by an election
        self._outstanding.popleft()
        self.committed = transaction.zxid
        for server in self.servers:
            server.from_leader.send(transaction)

    def committed_tree(self) -> Tree:
        """Return a copy of the tree with the committed writes: each server has or will have them."""
        first = self.servers[0]
        tree = first.tree.copy()
        for transaction in first.from_leader.in_progress:
            tree.replay(transaction.changes, transaction.zxid, transaction.time)
        return tree

    def welcome(self, server: Server) -> None:
        """Answer the clients whose new session has reached a server."""
        ready = [
            newcomer
            for newcomer in self.newcomers
            if newcomer.server is server and server.tree.applied >= newcomer.zxid
        ]
        self.newcomers = [newcomer for newcomer in self.newcomers if newcomer not in ready]
        for newcomer in ready:
            newcomer.welcome()

    # Elections

    def elect(self, *, keep: int | None = None) -> None:
        """Make another server the leader: all connections are lost, and a new epoch begins.

        Of the proposals not yet committed, the first ``keep`` survive (None: a random number).
        """
        outstanding, self._outstanding = list(self._outstanding), deque()
        newcomers, self.newcomers = self.newcomers, []
        for newcomer in newcomers:
            newcomer.refuse()
        kept = self.random.randint(0, len(outstanding)) if keep is None else min(keep, len(outstanding))
        for server in self.servers:
            for connection in list(server.connections):
                connection.cut("another server leads")
        for transaction in outstanding[:kept]:
            self.committed = transaction.zxid
            for server in self.servers:
                server.from_leader.send(transaction)
        self._lose(outstanding[kept:])
        self.epoch += 1
        self.counter = 0
        now = self.loop.time()
        for session in self.sessions.values():
            session.received_at = now

    def _lose(self, lost: list[Transaction]) -> None:
        """Undo the writes that no majority had: the tree contains the committed writes."""
        if not lost:
            return
        self.tree = self.committed_tree()
        for transaction in lost:
            if transaction.ends_session and transaction.session is not None:
                self._revive(transaction.session)

    def _revive(self, ended: ServerSession) -> None:
        """Restore a session whose end was lost: the next leader has no record of the end."""
        session = ServerSession(ended.id, ended.password, ended.timeout, ended.process, received_at=self.loop.time())
        self.sessions[session.id] = session
        self.loop.call_later(session.timeout, self._expire_if_silent, session, context=self.context)


_MOMENT = 1e-6
