"""FastAPI and Starlette: a session for the application, and a transaction that commits before its response is sent.

Needs FastAPI (the extra ``fastapi``); no other module of the package imports this one. `lifespan` and `session_of` do
not use FastAPI's dependencies, so a Starlette application can use them, too.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from aiozkqueue.app import App
from aiozkqueue.arguments import required_seconds
from aiozkqueue.disconnection import is_disconnected
from aiozkqueue.errors import (
    AlreadyExistsError,
    ConnectionLostError,
    DuplicateKeyError,
    InvalidOptionError,
    MessageTooLargeError,
    NoReplyError,
    NotCommittedError,
    NotFoundError,
    OutcomeUnknownError,
    QueueInUseError,
    SessionClosedError,
    TransactionTooLargeError,
    UnknownMoveError,
)
from aiozkqueue.extras import needs
from aiozkqueue.queue.outcome import Outcome
from aiozkqueue.session.connect import connect
from aiozkqueue.session.internals import core_of
from aiozkqueue.session.session import QueueSession
from aiozkqueue.session.transaction import Transaction
from aiozkqueue.zookeeper import State

with needs("fastapi"):
    from fastapi import Depends, HTTPException, Request, WebSocket
    from starlette.requests import HTTPConnection  # noqa: TC002 - FastAPI reads annotations at run time
    from starlette.responses import JSONResponse, Response
    from starlette.websockets import WebSocketState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager
    from typing import Unpack

    from starlette.applications import Starlette
    from starlette.types import Receive, Scope, Send

    from aiozkqueue.arguments import Seconds
    from aiozkqueue.session.connect import ConnectOptions

    Handler = Callable[[Request, Exception], Coroutine[Any, Any, Response]]

__all__ = [
    "SessionDep",
    "TransactionDep",
    "error_handlers",
    "get_session",
    "in_transaction",
    "lifespan",
    "session_of",
    "state",
]

log: Final = logging.getLogger(__name__)

_STATE: Final = "aiozkqueue_session"
#: The status that nginx logs for a client that has disconnected. Only the access log shows it.
_CLIENT_GONE: Final = 499
_UNAVAILABLE: Final = 503
#: The codes with which a WebSocket is closed, of RFC 6455 and its registry.
_INTERNAL_ERROR: Final = 1011
_TRY_AGAIN_LATER: Final = 1013
#: Seconds after which a client should repeat a request that was not applied.
_RETRY_AFTER: Final = "1"


def state(session: QueueSession) -> dict[str, QueueSession]:
    """Return the state that your own lifespan yields, so that `session_of` finds the session."""
    return {_STATE: session}


def lifespan(
    hosts: str | App, **options: Unpack[ConnectOptions]
) -> Callable[[Starlette], AbstractAsyncContextManager[dict[str, QueueSession]]]:
    """Return a lifespan with one session for the whole application: ``FastAPI(lifespan=lifespan("zk1:2181"))``.

    Give the addresses of the servers or an `aiozkqueue.App`, whose queues then work in endpoints. The options are those
    of `aiozkqueue.connect`; with an `aiozkqueue.App` they replace its own. The application does not start without a
    connection. When it stops, active operations are settled first. It runs no handlers: use ``aiozkqueue worker``.

    Raises:
        InvalidOptionError: immediately, if an option is out of range or the hosts do not parse.
    """
    connecting = hosts.connect if isinstance(hosts, App) else partial(connect, hosts)
    connecting(**options)  # checks them

    @asynccontextmanager
    async def opened(_app: Starlette) -> AsyncIterator[dict[str, QueueSession]]:
        async with connecting(**options) as session:
            yield state(session)

    return opened


def session_of(connection: HTTPConnection) -> QueueSession:
    """Return the application's session, for an endpoint of Starlette.

    Raises:
        InvalidOptionError: the application has no session, or its lifespan does not run.
    """
    session = getattr(connection.state, _STATE, None)
    if not isinstance(session, QueueSession):
        msg = (
            "the application has no queue session: give it lifespan=aiozkqueue.fastapi.lifespan(hosts), or yield "
            "aiozkqueue.fastapi.state(session) from its own lifespan; a mounted application uses the lifespan of the "
            "outer one. In a test, `with TestClient(app)` runs the lifespan; httpx.ASGITransport does not, so override "
            "the dependency aiozkqueue.fastapi.get_session"
        )
        raise InvalidOptionError(msg)
    return session


async def get_session(connection: HTTPConnection) -> QueueSession:
    """Return the application's session: the dependency behind `SessionDep`, which tests override.

    Raises:
        InvalidOptionError: as `session_of`.
    """
    # A coroutine, because FastAPI runs other dependencies in a thread, and waits while all threads are in use.
    return session_of(connection)


SessionDep = Annotated[QueueSession, Depends(get_session)]
"""The application's session."""


def in_transaction(*, commit_timeout: Seconds = 10) -> Any:  # noqa: ANN401 - like the result of FastAPI's Depends
    """Return a dependency on a transaction for each request, for ``Annotated[Transaction, ...]``.

    The transaction is committed after the endpoint has returned and before any part of the response is sent, so a
    client that reads a success knows that it was applied. It is rolled back if the endpoint raises (including
    `HTTPException`), if the request is cancelled, or if the client has disconnected by then. An endpoint that *returns*
    an error response must ``await tx.rollback()`` itself. The transaction has ended when the response is sent, so
    background tasks and streams cannot use it.

    ``commit_timeout`` is the maximum time that the response waits for ZooKeeper's answer, seconds. A failed commit
    raises the errors of `Transaction.commit`, and the client gets an error: 500, or the response of `error_handlers`.
    While the session is known to have no connection, a request fails at once with `ConnectionLostError`, and a commit
    with `NotCommittedError`: nothing was sent.

    Raises:
        InvalidOptionError: the timeout is not a finite number of seconds.
    """
    limit = required_seconds(commit_timeout, "commit_timeout")

    async def transaction(connection: HTTPConnection, session: SessionDep) -> AsyncIterator[Transaction]:
        if not isinstance(connection, Request):
            msg = (
                "a WebSocket has no response that a transaction could precede: use SessionDep, and "
                "`async with session.transaction() as tx:` for the messages that belong together"
            )
            raise InvalidOptionError(msg)
        setattr(connection.state, _STATE, session)  # for `_log`, also if `get_session` is overridden
        if not _connected(session):
            msg = "there is no connection to ZooKeeper now; nothing was sent; try again later"
            raise ConnectionLostError(msg)
        async with session.transaction() as tx:
            yield tx
            if tx.outcome is not Outcome.OPEN:
                return
            if await is_disconnected(connection):
                await tx.rollback(delay=0)
                raise HTTPException(_CLIENT_GONE, "the client has gone; its transaction was rolled back")
            await tx.commit(timeout=limit if _connected(session) else 0)

    # By default, a dependency ends after the response has been sent, and the commit would come too late.
    return Depends(transaction, scope="function")


def _connected(session: QueueSession) -> bool:
    return core_of(session).zookeeper.state is State.CONNECTED


TransactionDep = Annotated[Transaction, in_transaction()]
"""A transaction for one request; see `in_transaction`."""


class _Close(Response):
    """The end of a WebSocket that was accepted, which can have no HTTP response."""

    def __init__(self, websocket: WebSocket, instead: JSONResponse, reason: str) -> None:
        super().__init__()
        self._websocket = websocket
        self._code = _TRY_AGAIN_LATER if instead.status_code == _UNAVAILABLE else _INTERNAL_ERROR
        self._reason = reason

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Close the WebSocket, unless its client or the endpoint has."""
        del scope, receive, send
        if WebSocketState.DISCONNECTED not in {self._websocket.client_state, self._websocket.application_state}:
            await self._websocket.close(self._code, self._reason)


def _response(
    connection: HTTPConnection,
    error: Exception,
    status: int,
    body: dict[str, str],
    headers: dict[str, str] | None = None,
) -> Response:
    """Log an error, and return the response for its client."""
    _log(connection, error)
    response = JSONResponse(body, status, headers)
    if isinstance(connection, WebSocket) and (
        connection.application_state is not WebSocketState.CONNECTING
        or "websocket.http.response" not in connection.scope.get("extensions", {})
    ):
        return _Close(connection, response, body["detail"])
    return response


def _log(connection: HTTPConnection, error: Exception) -> None:
    # No other code logs an error that has a handler, but the session logs the outage that refuses every request.
    session = getattr(connection.state, _STATE, None)
    refused = isinstance(error, ConnectionLostError | NotCommittedError)
    quiet = refused and isinstance(session, QueueSession) and not session.connected
    # The path may contain anything, including control characters of terminals.
    method, path = connection.scope.get("method", "WEBSOCKET"), connection.url.path
    log.log(logging.DEBUG if quiet else logging.WARNING, "%r %r: %s", method, path, error)


def _problem_handler(status: int, detail: str, headers: dict[str, str] | None = None) -> Handler:
    async def handler(request: Request, error: Exception) -> Response:
        return _response(request, error, status, {"detail": detail}, headers)

    return handler


async def _unknown(request: Request, error: Exception) -> Response:
    detail = "whether this was applied is not known yet; do not simply send it again"
    transaction_id = error.transaction_id if isinstance(error, OutcomeUnknownError) else ""
    return _response(request, error, 504, {"detail": detail, "transaction_id": transaction_id})


async def _no_reply(request: Request, error: Exception) -> Response:
    detail = "there was no reply in time; the call may still be handled; do not simply send it again"
    message_id = error.message_id if isinstance(error, NoReplyError) else ""
    return _response(request, error, 504, {"detail": detail, "message_id": message_id})


_TRY_AGAIN = _problem_handler(_UNAVAILABLE, "nothing was applied; try again", {"Retry-After": _RETRY_AFTER})
_NOT_FOUND = _problem_handler(404, "it does not exist; nothing was applied")

error_handlers: Final[dict[int | type[Exception], Handler]] = {
    NotCommittedError: _TRY_AGAIN,
    ConnectionLostError: _TRY_AGAIN,
    SessionClosedError: _TRY_AGAIN,
    DuplicateKeyError: _problem_handler(
        409, "a message with this key is already waiting or being handled; nothing was applied"
    ),
    QueueInUseError: _problem_handler(409, "the queue is in use; nothing was applied"),
    AlreadyExistsError: _problem_handler(409, "it exists already; nothing was applied"),
    NotFoundError: _NOT_FOUND,
    UnknownMoveError: _NOT_FOUND,
    MessageTooLargeError: _problem_handler(413, "the message is too large; nothing was applied"),
    TransactionTooLargeError: _problem_handler(413, "the transaction is too large; nothing was applied"),
    OutcomeUnknownError: _unknown,
    NoReplyError: _no_reply,
}
"""Handlers that turn the errors of a queue into responses: ``FastAPI(..., exception_handlers=error_handlers)``.

503 with ``Retry-After`` if repeating the request is safe, 404 for a name that does not exist, 409 for one that exists
already, a unique key that is taken, or a queue in use, 413 for a message or a transaction that is too large, 504 if the
outcome of the commit or the reply to a call is not known in time. A WebSocket that was accepted is closed with the code
1013 instead of 503, and with 1011 instead of the others. All other errors, such as those of options, types and
access rights, get 500, because the client cannot correct them. The texts name no queue and no server.
"""
