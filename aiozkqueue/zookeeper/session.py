"""The ZooKeeper session: kept alive on one connection after another, and followed by a new one when it ends.

It replaces aiozk's session, which sends writes again after a loss, waits for its own end in its repair loop, takes a
new session for the old one, and can neither start nor close without a server. This one sends each write once, ends a
session only by the server's verdict, and starts and closes without a server.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakSet

import anyio

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.zookeeper import handshake, heartbeat, records, wire
from aiozkqueue.zookeeper.connection import Connection, failed
from aiozkqueue.zookeeper.errors import (
    AuthFailedError,
    ClientClosedError,
    ConnectionLossError,
    NotConnectedError,
    ProtocolError,
    SessionExpiredError,
    ZooKeeperError,
)
from aiozkqueue.zookeeper.interface import State
from aiozkqueue.zookeeper.lookups import NO_ANSWER, Lookups
from aiozkqueue.zookeeper.outage import OutageLog
from aiozkqueue.zookeeper.request_limit import RequestLimit, smaller_limit
from aiozkqueue.zookeeper.states import StateMachine
from aiozkqueue.zookeeper.tls_errors import described
from aiozkqueue.zookeeper.watches import WatchRegistry

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Sequence

    from aiozkqueue.zookeeper.auth import Auth
    from aiozkqueue.zookeeper.hosts import Ensemble, Server
    from aiozkqueue.zookeeper.interface import ZooKeeper

_log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_DELAY, _LONGEST_DELAY = 0.01, 1.0  # between rounds over the servers, seconds, before jitter
_STABLE = 1.0  # a connection that lived this long, seconds, resets the delays
_SHORT_LIVED = 8  # shorter-lived connections in a row that also reset the delays if they answered requests
_ROUND = 2 / 3  # of the session timeout
_SHORTEST_ATTEMPT = 0.5
_MOST_DOUBLINGS = 16  # of the time of an attempt
_LONGEST_TIMEOUT = 2_147_483.0  # the protocol carries milliseconds in 31 bits
_LOOKUP = 2.0  # to ask a server for its limit, seconds
_GOODBYE = 0.9  # for the server's answer when closing, seconds


class _VerdictError(Exception):
    """The server reports that the requested session has ended."""


class Session:
    """One client's session, and its later ones. Call every method on the loop that `start` was called on."""

    def __init__(
        self,
        ensemble: Ensemble,
        *,
        timeout: float,
        tls: ssl.SSLContext | None = None,
        auth: Sequence[Auth] = (),
        max_request: int = wire.MAX_REQUEST,
        jitter: random.Random | None = None,
    ) -> None:
        if not 0 < timeout < _LONGEST_TIMEOUT:
            raise InvalidOptionError(f"session_timeout={timeout}: give seconds, more than 0 and less than 24 days")
        if max_request < 1:
            raise InvalidOptionError(f"max_request={max_request}: give the server's jute.maxbuffer, bytes")
        self.ensemble = ensemble
        self.states: StateMachine = StateMachine()
        self.watches: WatchRegistry = WatchRegistry()
        self.limit: RequestLimit = RequestLimit(max_request)
        self.timeout: float = timeout
        self.session_id: int = 0
        self._wanted_timeout = timeout
        self._tls = tls
        self._auth = tuple(auth)
        self._random = jitter or random.Random()  # noqa: S311 - spreads reconnections, protects nothing
        self._connection: Connection | None = None
        self._resumable: wire.Connected | None = None
        self._zxid = 0
        self._last_received = 0.0
        self._closing = False
        self._disowned = False
        self._failure: ZooKeeperError | None = None
        self._task: asyncio.Task[None] | None = None
        self._lookups = Lookups()
        self._outages = OutageLog(ensemble)
        _SESSIONS.add(self)

    # State

    @property
    def state(self) -> State:
        """The state of the client."""
        return self.states.state

    @property
    def max_request(self) -> int:
        """The largest request that the server of the connection accepts, as far as known, bytes."""
        return self.limit.accepted

    @property
    def authenticated(self) -> bool:
        """Whether credentials are sent on each connection."""
        return bool(self._auth)

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The encryption of connections, if any."""
        return self._tls

    @property
    def connection(self) -> Connection | None:
        """The connection that carries the session, if there is one."""
        return self._connection

    @property
    def last_zxid(self) -> int:
        """The newest zxid seen."""
        return max(self._zxid, self._connection.last_zxid) if self._connection else self._zxid

    @property
    def last_received(self) -> float:
        """When anything last arrived, by the loop's time, except answers that a request was dropped."""
        connection = self._connection
        if connection is None:
            return self._last_received
        since = connection.dropping.since
        return connection.last_received if since is None else min(connection.last_received, since)

    @property
    def pause(self) -> float:
        """Seconds until a request may be sent again to a server that drops requests."""
        until = 0.0 if self._connection is None else self._connection.dropping.until
        return max(0.0, until - asyncio.get_running_loop().time()) if until else 0.0

    async def wait_connected(self, *, generation: int | None = None, after: int | None = None) -> int:
        """Wait until connected and return the generation; see `ZooKeeper.wait_connected`."""
        states = self.states
        while True:
            refusal = self._refusal(generation)
            if refusal is not None and not isinstance(refusal, NotConnectedError):
                raise refusal
            pause = self.pause
            if refusal is None and not pause and (after is None or states.generation > after):
                return states.generation
            with anyio.move_on_after(pause or None):
                await states.changed()

    def _refusal(self, generation: int | None) -> ZooKeeperError | None:
        states, state = self.states, self.states.state
        if state is State.CONNECTED and not self._closing and (generation is None or generation == states.generation):
            return None  # the usual case
        if self._closing or state is State.CLOSED:
            return ClientClosedError("the ZooKeeper client has been closed")
        if state is State.FAILED:
            return self._failed_for_good()
        if generation is not None and states.is_over(generation):
            return SessionExpiredError(f"ZooKeeper session number {generation} of this client has ended")
        if state is not State.CONNECTED:
            return NotConnectedError(f"not connected to {self.ensemble}; the request was not sent")
        return None

    def _failed_for_good(self) -> ZooKeeperError:
        failure = self._failure or ZooKeeperError("the ZooKeeper client has failed")
        error = type(failure)(*failure.args)  # one per waiter: a traceback belongs to one raise
        error.__cause__ = failure.__cause__
        return error

    # Requests

    def submit(self, request: wire.Request[T], *, generation: int | None = None) -> asyncio.Future[T]:
        """Send once, now; the future raises the error of a refused request."""
        too_large = request.size > self.limit.accepted
        error = self.limit.too_large(request.size) if too_large else self._refusal(generation)
        if error is None and self._connection is not None:
            return self._connection.submit(request)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        return failed(future, error or NotConnectedError("not connected; the request was not sent"))

    async def call(self, request: wire.Request[T], *, generation: int | None = None) -> T:
        """Send, and send again after a lost connection: for requests that change nothing when repeated."""
        while True:
            if self.states.state is not State.CONNECTED or self.pause:
                await self.wait_connected(generation=generation)
            try:
                return await self.submit(request, generation=generation)
            except ConnectionLossError as loss:
                if isinstance(loss.__cause__, ProtocolError):  # the next reply would have the same error
                    raise loss.__cause__ from None
            except SessionExpiredError:  # reported by the server; without a generation, the next session is as good
                if generation is not None:
                    raise

    # Life

    def log_outages_with(self, main: ZooKeeper) -> None:
        """Log only those outages that ``main``, another client of this process with these servers, does not log."""
        self._outages.main = main

    def start(self) -> None:
        """Start to connect, in a task of this session's own, so that the caller is never cancelled."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"zookeeper session at {self.ensemble}")

    async def open(self, within: float | None, prepare: Callable[[], Awaitable[None]]) -> None:
        """Start, wait until connected, and run ``prepare``, all within this many seconds; if that fails, close.

        Raises:
            ConnectionLossError: no connection in that time; names the servers and each one's error.
            AuthFailedError: the credentials were refused.
        """
        self._outages.first_wait = math.inf if within is None else within
        self.start()
        try:
            with anyio.move_on_after(within):
                await self.wait_connected()
                await prepare()
                return
        except Exception:
            await self.close()
            raise
        except BaseException:
            self.kill()
            raise
        attempts = dict.fromkeys(self._lookups.running, NO_ANSWER) | self._outages.attempts
        await self.close()
        raise ConnectionLossError(
            f"no ZooKeeper server at {self.ensemble} could be used within {within:g} s "
            f"({'; '.join(f'{server}: {why}' for server, why in attempts.items()) or 'no answer'})"
        )

    async def close(self) -> None:
        """End the session at the server if it answers within a second; close the connection in any case."""
        if not self._closing:
            self._closing = True
            try:
                with anyio.move_on_after(_GOODBYE):
                    await self._end_on_server()
            finally:
                self.kill()
        if self._task is not None:
            await asyncio.wait([self._task])

    def kill(self) -> None:
        """Drop everything at once; the server ends the session at its timeout."""
        self._closing = True
        if self.states.state is not State.CLOSED:
            self.states.move(State.CLOSED)
        self._lookups.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort("the client has been closed")
        if self._task is not None:
            self._task.cancel()

    def disown(self) -> None:
        """Send nothing more and open no connection, because the session is that of the parent of this process."""
        self._closing = self._disowned = True
        connection, self._connection, self._task = self._connection, None, None
        if connection is not None:
            connection.disown()

    async def _end_on_server(self) -> None:
        while True:
            while self.states.state is State.SUSPENDED:
                await self.states.changed()
            if self.states.state is not State.CONNECTED or self._connection is None:
                return
            try:
                await self._connection.submit(wire.CLOSE)
            except ConnectionLossError:
                _log.debug("the connection was lost before the session was closed")
            except ZooKeeperError as refused:  # the session has ended already, or ends at its timeout
                _log.debug("the server has not confirmed the end of the session: %s", refused)
                return
            else:
                return

    async def _run(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(heartbeat.run, self)
                await self._keep_connected()
                tasks.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - any error ends the session, and no caller may wait for it any more
            _log.exception("the ZooKeeper session has failed")
            self._failure = ZooKeeperError(f"the ZooKeeper client has failed: {error!r}")
            self._failure.__cause__ = error
        finally:
            if self._failure is not None and self.states.state is not State.CLOSED:
                if self._connection is not None:
                    self._connection.abort("the client has failed")
                self.states.move(State.FAILED)
            elif self.states.state is not State.CLOSED:
                self.kill()  # the loop is ending, and cancels all its tasks

    async def _keep_connected(self) -> None:
        clock = asyncio.get_running_loop().time
        self._outages.begin()
        delay, previous, short_lived = 0.0, None, 0
        while self.states.state is not State.CLOSED and not self._disowned:
            await asyncio.sleep(delay * self._random.uniform(0.5, 1.0))
            delay = min(max(delay * 2, _FIRST_DELAY), _LONGEST_DELAY)
            try:
                connection = await self._reconnect(avoid=previous)
            except AuthFailedError as error:
                self._failure = error
                if self.states.generation:  # otherwise the caller that connects gets the error
                    _log.error(
                        "no server at %s accepts the credentials any more, so this session has failed: %s",
                        self.ensemble,
                        error,
                    )
                return
            if connection is not None:
                began, answered = clock(), connection.answered
                await connection.closed
                if clock() - began >= _STABLE:
                    delay, short_lived = _FIRST_DELAY, 0
                elif connection.answered > answered and short_lived < _SHORT_LIVED:
                    delay, short_lived = _FIRST_DELAY, short_lived + 1
                previous = connection.peer

    async def _reconnect(self, *, avoid: str | None) -> Connection | None:
        """Try each server once, in random order, the one just lost last.

        Raises:
            AuthFailedError: no server accepts the credentials; see `_must_fail`.
        """
        refusal: AuthFailedError | None = None
        unreached = False
        servers = self._random.sample(self.ensemble.servers, len(self.ensemble.servers))
        servers.sort(key=lambda server: str(server) == avoid)
        for server in servers:
            try:
                addresses = await self._addresses_of(server, self._attempt_timeout(len(servers)))
            except OSError as error:
                self._failed(server, error)
                unreached = True
                continue
            for address in addresses:
                if self.limit.doubtful:
                    await self.limit.learn(address, server, self._tls)
                try:
                    with anyio.fail_after(self._attempt_timeout(len(servers) * len(addresses))):
                        with suppress(_VerdictError):
                            return await self._establish(server, address)
                        return await self._establish(server, address)  # a new session; another lookup may take long
                except _VerdictError:
                    return None
                except AuthFailedError as error:
                    self._failed(server, error)
                    refusal = error
                except (OSError, ZooKeeperError) as error:  # TimeoutError is an OSError
                    self._failed(server, error)
                    unreached = True
        if refusal is not None and self._must_fail(unreached=unreached):
            raise refusal
        return None

    async def _addresses_of(self, server: Server, within: float) -> list[str]:
        """Return the addresses of a server in random order, the one of the last connection last.

        Raises:
            OSError: there are none, or their lookup takes more than this many seconds.
        """
        try:
            with anyio.fail_after(within):
                found = await self._lookups.addresses(server)
        except TimeoutError:
            raise TimeoutError(NO_ANSWER) from None
        return sorted(self._random.sample(found, len(found)), key=lambda address: address == self._lookups.used)

    def _must_fail(self, *, unreached: bool) -> bool:
        """Whether credentials that no server has accepted in this round end the client.

        An operator changes credentials on one server after the other. So a server that is not reached, which may be
        restarting, may accept them, until the session is likely to be over.
        """
        return not unreached or not self.states.generation or self._outages.lasted > self.timeout

    def _attempt_timeout(self, attempts: int) -> float:
        """Return the seconds for each of the attempts of a round.

        A round leaves time to resume the session, and the first round ends before the caller stops waiting. When it is
        too late for that, slower servers get a chance too.
        """
        most = self.timeout * _ROUND
        if attempts > 1 and not self.states.generation:
            most = min(most, self._outages.first_wait * _ROUND)
        doublings = min(int(self._outages.lasted / self.timeout), _MOST_DOUBLINGS)
        return max(min(most / attempts * 2.0**doublings, most), _SHORTEST_ATTEMPT)

    async def smaller_limit_of(self, server: Server) -> int | None:
        """Return the request limit of a server, bytes, if it is certain that it is smaller than this client expects."""
        try:
            with anyio.fail_after(_LOOKUP):
                addresses = await handshake.resolve(server)
        except OSError:
            return None
        for address in addresses:
            limit = await smaller_limit(address, server, self.limit.wanted, self._tls)
            if limit is not None:
                return limit
        return None

    def _failed(self, server: Server, error: Exception) -> None:
        why = described(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
        self._outages.tried(server, why)

    async def _establish(self, server: Server, address: str) -> Connection:
        opened: Connection | None = None

        def connection() -> Connection:
            nonlocal opened
            opened = Connection(str(server), on_events=self.watches.dispatch, on_lost=self._lost)
            return opened

        try:
            established = await handshake.dial(address, server, connection, self._tls)
            await self._resume(established)
            await handshake.authenticate(established, self._auth)
            for watches in self.watches.wanted(self.max_request):
                await established.submit(records.set_watches(self.last_zxid, watches))
            self._connected(established)
            self._lookups.used = address
        except BaseException as error:
            if opened is not None:
                opened.abort("not established", error)
                if opened.session_expired:
                    self._verdict()
            raise
        return established

    async def _resume(self, connection: Connection) -> None:
        wanted = self._resumable
        packet = handshake.connect_packet(wanted, timeout=self._wanted_timeout, last_zxid=self.last_zxid)
        reply = await connection.handshake(packet)
        if reply.session_id == 0:
            self._verdict()
            raise _VerdictError
        if wanted is not None and reply.session_id != wanted.session_id:
            # The server has created a new session in answer to the old id. End it here: the next session must be
            # created after the old one was known to be over.
            _log.warning("%s answered with a session other than the requested one", connection.peer)
            self._verdict()
            await connection.submit(wire.CLOSE)
            raise _VerdictError
        if reply.timeout <= 0:
            raise ProtocolError(f"a session timeout of {reply.timeout} seconds")
        self._resumable = reply
        self.timeout = reply.timeout

    def _connected(self, connection: Connection) -> None:
        if connection.loss is not None:
            raise connection.loss
        assert self._resumable is not None  # noqa: S101 - set by the handshake of this connection
        new_session = self._resumable.session_id != self.session_id
        self.session_id = self._resumable.session_id
        self._connection = connection
        self._lookups.clear()
        self.limit.in_doubt = False
        kind = "new" if new_session else "resumed"
        at = f"{connection.peer}, timeout {self.timeout:.1f} s"
        self._outages.end(f"{kind} session 0x{self.session_id:x} at {at}")
        first = self.states.generation == 0
        self.states.move(State.CONNECTED, new_session=new_session)
        if not first:
            self.watches.notify_missed()

    def _lost(self, connection: Connection) -> None:
        self.limit.in_doubt = self.limit.in_doubt or connection.cut_off > 0
        if connection is not self._connection:
            return
        self._outages.begin(connection.loss)
        self._zxid, self._last_received = self.last_zxid, self.last_received
        self._connection = None
        self.watches.lost()
        self.states.move(State.SUSPENDED)
        if connection.session_expired:
            self._verdict()

    def _verdict(self) -> None:
        """The server has reported that the session has ended; only this ends a session."""
        self._resumable = None
        self.timeout = self._wanted_timeout
        if self.states.state is State.SUSPENDED:
            self.states.move(State.LOST)


_SESSIONS: Final[WeakSet[Session]] = WeakSet()


def _disown_all() -> None:
    for session in _SESSIONS:
        session.disown()


if hasattr(os, "register_at_fork"):  # no forked children without fork
    os.register_at_fork(after_in_child=_disown_all)
