"""A hardened uvicorn: slow or lost clients do not affect other clients.

uvicorn itself waits forever for the head of a request, for the rest of a body that the application does not read, and
for a client that does not read its response. Here every state of a connection has a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, Unpack, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .connection_limit import ConnectionLimit
from .health import PATHS
from .listening import BACKLOG, most_connections
from .messages import GONE

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterator

    from fastapi import FastAPI
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Seconds for the head of a request to arrive, from the start of the connection or the first byte of the head.
HEAD_TIMEOUT: Final = 20.0
#: Seconds for a client to read its response.
RESPONSE_TIMEOUT: Final = 60.0
#: Seconds for which a connection stays open after a response before the end of the body: the client can read it.
UNREAD_BODY_TIMEOUT: Final = 2.0
#: Seconds for which an idle connection stays open: longer than proxies and clients keep theirs open.
KEEP_ALIVE: Final = 75
#: Seconds for active requests to finish after a stop.
SHUTDOWN_TIMEOUT: Final = 20
#: The maximum size of the head of a request, bytes.
HEAD_LIMIT: Final = 32 * 1024
#: The maximum number of connections. `PATHS` are served on some more.
MOST_CONNECTIONS: Final = 2_000
#: The maximum share of one address.
SHARE: Final = 0.5
#: The number of further connections, on which only `PATHS` are served.
SPARE_CONNECTIONS: Final = 100
#: The maximum number of connections to an admin port.
ADMIN_CONNECTIONS: Final = 100
#: Seconds during which the same line is not logged again.
REPEAT_AFTER: Final = 10.0

_CLOSE: Final = (b"connection", b"close")

log: Final = logging.getLogger(__name__)


class _ConnectionState(Enum):
    """The state of a connection."""

    IDLE = auto()
    HEAD = auto()
    REQUEST = auto()
    ANSWER = auto()
    END = auto()


class LimitedProtocol(H11Protocol):
    """A connection with deadlines for its client."""

    connection_limit: ConnectionLimit[LimitedProtocol]  # set on a subclass for each server
    _known_state: _ConnectionState | None = None
    _deadline: asyncio.TimerHandle | None = None
    _read_by: float | None = None  # the deadline for reading the current response, once its client is slow
    _blocked = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's
        """Start to wait for the first request."""
        super().connection_made(transport)
        self.access_log = False  # even if logging is configured for it: a URL may contain a key
        has_room, displaced = self.connection_limit.enter(self, self.client[0] if self.client else "")
        if displaced is not None:
            displaced.transport.abort()
        app = cast("ASGIApp", self.config.loaded_app)  # pyright: ignore[reportUnknownMemberType] - uvicorn's own types
        self.app = self._serving(app if has_room else _full(app))
        if not has_room and len(self.connection_limit) > self.connection_limit.most + SPARE_CONNECTIONS:
            transport.abort()
        self._update()

    def data_received(self, data: bytes) -> None:
        """Process received data."""
        super().data_received(data)
        self._update()

    def eof_received(self) -> None:
        """Treat the end of the client's data as its disconnection from now on, as uvicorn does."""
        if self.cycle is not None:  # pyright: ignore[reportUnnecessaryComparison] - it is, before the first request
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        self.connection_limit.leave(self)
        self.resume_writing()
        super().connection_lost(exc)
        self._watch(None)
        self._unset_keepalive_if_required()

    def pause_writing(self) -> None:
        """Wait until the client has read more."""
        super().pause_writing()
        self._blocked = True
        self._update()

    def resume_writing(self) -> None:
        """Continue, because the client has read."""
        self._blocked = False
        super().resume_writing()
        self._update()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._update()

    def shutdown(self) -> None:
        """Close the connection, after the current request if there is one."""
        super().shutdown()
        self._update()

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection, because no request came."""
        super().timeout_keep_alive_handler()
        self._update()

    # -- deadlines

    def _update(self) -> None:
        """Update the state of the connection and its deadline."""
        at = self._current_state()
        if at is self._known_state:
            return
        self._known_state = at
        if at is _ConnectionState.REQUEST:
            self.connection_limit.work(self)
        else:
            self.connection_limit.idle(self)
        # Idle connections have uvicorn's timer, and requests have the time limits of their handlers.
        if at is _ConnectionState.HEAD:
            self._watch(HEAD_TIMEOUT)
        elif at in {_ConnectionState.ANSWER, _ConnectionState.END}:
            self._watch(self._left_to_read())
        else:
            self._watch(None)
        if at in {_ConnectionState.HEAD, _ConnectionState.IDLE}:
            self._read_by = None

    def _left_to_read(self) -> float:
        """Return the seconds left to read the current response, regardless of its number of portions."""
        now = self.loop.time()
        self._read_by = now + RESPONSE_TIMEOUT if self._read_by is None else self._read_by
        return max(0.0, self._read_by - now)

    def _current_state(self) -> _ConnectionState:
        if self.transport.is_closing():
            return _ConnectionState.END
        if self._blocked:
            return _ConnectionState.ANSWER
        asked = self.cycle is not None  # pyright: ignore[reportUnnecessaryComparison] - before the first request
        if asked and not self.cycle.response_complete:
            return _ConnectionState.REQUEST
        return _ConnectionState.IDLE if asked and not self.conn.trailing_data[0] else _ConnectionState.HEAD

    def _watch(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

    # -- requests

    def _serving(self, app: ASGIApp) -> Any:  # noqa: ANN401 - uvicorn has its own types for ASGI
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            served = _too_long if _head_length(scope) > HEAD_LIMIT else _two_lengths if _has_two_lengths(scope) else app
            cycle = self.cycle
            gone = {GONE: lambda: cycle.disconnected or self.transport.is_closing()}
            scope["extensions"] = {**scope.get("extensions", {}), **gone}
            await served(scope, receive, self._closing(receive, send))

        return serve

    def _closing(self, receive: Receive, send: Send) -> Send:
        """Return a ``send`` that closes the connection if the body has not arrived before the response.

        The application does not read such a body. Closing immediately could discard the response while the client still
        sends.
        """
        unread = False

        async def sent(message: Message) -> None:
            nonlocal unread
            if message["type"] == "http.response.start" and self.conn.their_state is h11.SEND_BODY:
                unread = True
                message = {**message, "headers": [*message.get("headers", ()), _CLOSE]}
            elif unread and message["type"] == "http.response.body" and not message.get("more_body"):
                await send({**message, "more_body": True})
                self.connection_limit.finish(self)
                await _drop_body(receive)
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        return sent


async def _drop_body(receive: Receive) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(UNREAD_BODY_TIMEOUT):
            while (message := await receive())["type"] != "http.disconnect" and message.get("more_body"):
                pass


def _head_length(scope: Scope) -> int:
    length: int = len(scope["raw_path"]) + len(scope["query_string"])
    return length + sum(len(name) + len(value) + 4 for name, value in scope["headers"])


def _has_two_lengths(scope: Scope) -> bool:
    """Whether a body is declared twice: a proxy may end it elsewhere, and take the rest for another request."""
    names = {name for name, _ in scope["headers"]}
    return b"content-length" in names and b"transfer-encoding" in names


def _full(app: ASGIApp) -> ASGIApp:
    """Return an application that serves only the health checks."""

    async def only_health(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].removeprefix(scope.get("root_path", "")) in PATHS:
            await app(scope, receive, send)
            return
        log.warning("the maximum number of connections (in all, or of one address) is reached: a request got a 503")
        await _answer(send, 503, b"too many connections", (b"retry-after", b"5"))

    return only_health


async def _too_long(_: Scope, _receive: Receive, send: Send) -> None:
    await _answer(send, 431, b"the request's head is too long")


async def _two_lengths(_: Scope, _receive: Receive, send: Send) -> None:
    await _answer(send, 400, b"the request has both Content-Length and Transfer-Encoding")


async def _answer(send: Send, status: int, text: bytes, *headers: tuple[bytes, bytes]) -> None:
    fields = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(text)), _CLOSE, *headers]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": text})


class _RepeatFilter(logging.Filter):
    """Passes the same line once in `REPEAT_AFTER` seconds, because strangers can cause any number of them."""

    def __init__(self) -> None:
        super().__init__()
        self._since: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log this record."""
        if record.levelno > logging.WARNING or record.args:
            return True
        now, text = time.monotonic(), str(record.msg)
        if now - self._since.get(text, -REPEAT_AFTER) < REPEAT_AFTER:
            return False
        self._since[text] = now
        return True


_QUIET_LINES: Final = _RepeatFilter()


class Server(uvicorn.Server):
    """A server that notifies the application before it stops, and leaves signals to its caller.

    uvicorn raises a signal again after it has stopped, which would end the process before its session is closed.
    """

    def __init__(self, config: uvicorn.Config, leave: Callable[[], None]) -> None:
        super().__init__(config)
        self._leave = leave
        self.withdraw: Callable[[], Awaitable[None]] | None = None
        """Called and awaited first when the server stops."""

    def stop(self) -> None:
        """Stop after the active requests have ended; a second call stops immediately."""
        self.force_exit = self.should_exit
        self.should_exit = True
        if self.force_exit:
            self._abort_connections()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Fail the readiness check, end waiting requests, then stop."""
        if self.withdraw is not None:
            await self.withdraw()
        self._leave()
        if self.force_exit:
            self._abort_connections()
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn would leave the application running, and log its cancellation as an error
            await self.lifespan.shutdown()

    def _abort_connections(self) -> None:
        """Abort all connections. From Python 3.12 on, uvicorn would wait until their clients close them."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def server(
    app: FastAPI,
    *,
    host: str,
    port: int,
    root_path: str = "",
    keep_alive: int = KEEP_ALIVE,
    forwarded_allow_ips: str | None = None,
) -> Server:
    """Return a server for the application made by `create_app`.

    It does not log requests, because an EmoDB client may send its key in the URL. The headers ``X-Forwarded-For`` and
    ``X-Forwarded-Proto`` are accepted only from ``forwarded_allow_ips``: a comma-separated list of addresses and
    networks, by default ``127.0.0.1``.
    """
    most = most_connections(MOST_CONNECTIONS)
    connection_limit = ConnectionLimit[LimitedProtocol](most, max(1, int(most * SHARE)))
    options: _Options = {
        "host": host,
        "port": port,
        "root_path": root_path,
        "timeout_keep_alive": keep_alive,
        "forwarded_allow_ips": forwarded_allow_ips,
    }
    return Server(_config(app, connection_limit, lifespan="on", **options), app.state.leave)


def admin_server(app: FastAPI) -> Server:
    """Return a server for the admin port of the application made by `create_app`."""
    connection_limit = ConnectionLimit[LimitedProtocol](ADMIN_CONNECTIONS, ADMIN_CONNECTIONS)
    return Server(_config(app.state.admin, connection_limit, lifespan="off"), leave=lambda: None)


class _Options(TypedDict, total=False):
    host: str
    port: int
    root_path: str
    forwarded_allow_ips: str | None
    timeout_keep_alive: int


def _config(
    app: ASGIApp,
    connection_limit: ConnectionLimit[LimitedProtocol],
    *,
    lifespan: Literal["on", "off"],
    **options: Unpack[_Options],
) -> uvicorn.Config:
    for logger in (log, logging.getLogger("uvicorn.error")):
        logger.addFilter(_QUIET_LINES)
    return uvicorn.Config(
        app,
        http=type("LimitedProtocol", (LimitedProtocol,), {"connection_limit": connection_limit}),
        ws="none",
        lifespan=lifespan,
        access_log=False,
        log_config=None,  # uvicorn's lines go where the process logs
        log_level="warning",
        server_header=False,
        h11_max_incomplete_event_size=HEAD_LIMIT,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT,
        backlog=BACKLOG,
        **options,
    )
