"""The client's end of a connection, and the session that moves from one connection to the next.

The session is the package's own, with its reconnections replaced, so the states, the generations and the rules for
refusing and repeating requests are those that users run.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, cast

from aiozkqueue.zookeeper import wire
from aiozkqueue.zookeeper.connection import Connection, failed
from aiozkqueue.zookeeper.dropping import Dropping
from aiozkqueue.zookeeper.errors import (
    ConnectionLossError,
    NotConnectedError,
    ServerError,
    SessionExpiredError,
    ThrottledError,
    ZooKeeperError,
)
from aiozkqueue.zookeeper.hosts import parse_hosts
from aiozkqueue.zookeeper.interface import State
from aiozkqueue.zookeeper.session import Session

from .loop import PROCESS
from .requests import Kind, Notifications, Pipe, Request
from .server import Newcomer, ServerConnection

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from aiozkqueue.zookeeper.interface import WatchEvent

    from .server import Network, Server, ServerSession

_log = logging.getLogger(__name__)

_SILENT = 2 / 3  # of the session timeout, after which the client gives up a silent connection


class SimulatedConnection:
    """A connection that carries requests out, and replies and events in, each after a delay and in order."""

    def __init__(
        self, session: SimulatedSession, server: Server, on_events: Callable[[list[WatchEvent]], None]
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.name: str = session.name
        self.peer: str = server.name
        self.server = server
        self.last_zxid: int = 0
        self.answered: int = 0
        self.session_expired: bool = False
        self.dropping: Dropping = Dropping()
        self.cut_off: int = 0  # whether requests had no answer when the server closed the connection
        self.loss: ConnectionLossError | None = None
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self._session = session
        self._on_events = on_events
        self._pending: deque[asyncio.Future[Any]] = deque()
        self._end: ServerConnection | None = None
        self._received = self.loop.time()
        ensemble = server.ensemble
        self._context = copy_context()
        delays = ensemble.delays
        self._outgoing: Pipe[Request] = Pipe(self.loop, self._arrive, delays.network, ensemble.context)
        self.stream: Pipe[tuple[int, object]] = Pipe(
            self.loop, self._receive, delays.network, self._context, delays.together
        )

    @property
    def last_received(self) -> float:
        """When anything last arrived. Pings are not simulated: they are answered as long as they get through."""
        if self._end is not None and self._end.healthy:
            self._received = self.loop.time()
        return self._received

    def attach(self, session: ServerSession) -> None:
        """Start to carry a session; a connection that carried it before stops."""
        before = session.connection
        self._end = ServerConnection(self.server, session, self)
        session.connection = self._end
        if before is not None and before.open:
            before.cut("the session has moved")
        session.received_at = self.loop.time()
        self.server.connections[self._end] = None

    def submit(self, request: Request | wire.Request[None]) -> asyncio.Future[Any]:
        """Send a request. Cancelling the future does not cancel the request."""
        if not isinstance(request, Request):  # the session's own request to close
            request = Request(Kind.CLOSE, None)
        future: asyncio.Future[Any] = self.loop.create_future()
        if self.loss is not None:
            return failed(future, NotConnectedError(f"not sent: {self.loss}"))
        self._pending.append(future)
        self._outgoing.send(request)
        return future

    def abort(self, reason: str, cause: BaseException | None = None) -> None:
        """Drop the connection at once: all pending requests fail before this returns."""
        if self.loss is not None:
            return
        self.loss = ConnectionLossError(f"connection to {self.peer} lost: {reason}")
        self.loss.__cause__ = cause
        _log.debug("%s", self.loss)
        self._outgoing.close()
        self.stream.close()
        if self._end is not None:
            self._end.on_client_closed()
        self._session.lost(self)
        pending, self._pending = self._pending, deque()
        for future in pending:
            if not future.done():
                failed(future, ConnectionLossError(str(self.loss)))
        if not self.closed.done():
            self.closed.set_result(None)

    def on_cut(self, why: str) -> None:
        """Handle the server's close of the connection."""
        self._received = self.loop.time()
        self.cut_off = len(self._pending)
        self.loop.call_soon(self.abort, why, context=self._context)

    def _arrive(self, request: Request) -> None:
        end = self._end
        if end is None:
            return
        silent, self._received = end.silent, self.last_received
        end.arrive(request)
        if end.silent and not silent:
            timeout = end.session.timeout * _SILENT
            self.loop.call_later(timeout, self.abort, f"no answer for {timeout:.1f} s", context=self._context)

    def _receive(self, what: tuple[int, object]) -> None:
        zxid, result = what
        self._received = self.loop.time()
        if isinstance(result, Notifications):
            self._on_events(result.events)
            return
        if isinstance(result, ServerError) and result.code == wire.SESSION_MOVED:
            self.abort("the session has moved to another server")
            return
        self.last_zxid = max(self.last_zxid, zxid)
        self.answered += 1
        if isinstance(result, ThrottledError):
            self.dropping.dropped(self.loop.time())
        else:
            self.dropping.carried_out()
        future = self._pending.popleft()
        if not future.done():
            if isinstance(result, ZooKeeperError):
                failed(future, result)
            else:
                future.set_result(result)
        if isinstance(result, SessionExpiredError):
            self.session_expired = True
            self.abort("the server has ended the session")


class SimulatedSession(Session):
    """The package's session, on simulated connections."""

    def __init__(self, ensemble: Network, name: str, *, timeout: float, jitter: Random, max_request: int) -> None:
        hosts = parse_hosts(",".join(server.name for server in ensemble.servers))
        super().__init__(hosts, timeout=timeout, max_request=max_request, jitter=jitter)
        self.name = name
        self.chance: Random = jitter
        self.server: Server | None = None
        """The server for the next connection; None: any."""
        self._servers = ensemble

    def lost(self, connection: SimulatedConnection) -> None:
        """Record that a connection is gone."""
        self._lost(cast("Connection", connection))

    def notify(self, events: list[WatchEvent]) -> None:
        """Notify the watchers."""
        self.watches.dispatch(wire.Event(event.kind.value, 3, event.path) for event in events)

    async def _run(self) -> None:
        try:
            await self._keep_connected()
        finally:
            if self._failure is not None and self.states.state is not State.CLOSED:
                self.states.move(State.FAILED)
            elif self.states.state is not State.CLOSED:
                self.kill()

    async def _reconnect(self, *, avoid: str | None) -> Connection | None:
        servers = self._random.sample(self._servers.servers, len(self._servers.servers))
        servers.sort(key=lambda server: server.name == avoid)
        if self.server is not None:
            servers = [self.server]
        if self.limit.doubtful:
            self.limit.accepted = min(self.limit.wanted, self._servers.max_request)
        for server in servers:
            connection = SimulatedConnection(self, server, self.notify)
            try:
                if await self._begin(connection, server):
                    return cast("Connection", connection)
            except ZooKeeperError as error:
                _log.info("%s: %s", server.name, error)
            except BaseException:
                connection.abort("not established")
                raise
            if connection.loss is None:
                connection.abort("not established")
            if self._resumable is None and self.states.generation:
                return None  # the server has ended the session: start again, without a session to resume
        return None

    async def _begin(self, connection: SimulatedConnection, server: Server) -> bool:
        """Make a connection carry the session, or a new one; return False if this server cannot accept it now."""
        ensemble, network = self._servers, self._servers.delays.network
        await asyncio.sleep(network() + network())
        if ensemble.dead or not server.up or server.tree.applied < self.last_zxid:
            return False  # the server is down, or behind the state that this client has seen
        wanted = self._resumable
        if wanted is None:
            session = await self._new_session(server)
            if session is None:
                return False
        else:
            resumed = ensemble.resume_session(wanted.session_id, wanted.password)
            if resumed is None:
                self._verdict()
                return False
            session = resumed
        self._resumable = wire.Connected(session.id, session.password, session.timeout)
        self.timeout: float = session.timeout
        connection.attach(session)
        wanted_watches = [(path, kind) for kind, path in self._persistent()]
        if wanted_watches:
            await connection.submit(Request(Kind.SET_WATCHES, wanted_watches))
        self._connected(cast("Connection", connection))
        return True

    async def _new_session(self, server: Server) -> ServerSession | None:
        ensemble = self._servers
        session, zxid = ensemble.open_session(self._wanted_timeout, PROCESS.get())
        if server.tree.applied < zxid:
            reached: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

            def answer(*, welcome: bool) -> None:
                if not reached.done():
                    reached.set_result(welcome)

            ensemble.newcomers.append(
                Newcomer(server, zxid, lambda: answer(welcome=True), lambda: answer(welcome=False))
            )
            if not await reached:
                return None
        return session

    def _persistent(self) -> list[tuple[bool, str]]:
        return [
            (recursive, path)
            for portion in self.watches.wanted(self.max_request)
            for recursive, paths in ((False, portion.persistent), (True, portion.recursive))
            for path in paths
        ]
