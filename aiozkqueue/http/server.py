"""uvicorn, hardened: a client that is slow, or gone, costs nobody else anything.

uvicorn itself waits without end for a request's head, and for a client to read its answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

    from fastapi import FastAPI

#: Seconds in which a request's head must have come, from the connection's or the last answer's end on.
HEAD_PATIENCE: Final = 20.0
#: Seconds for which a client may read nothing of its answer.
ANSWER_PATIENCE: Final = 60.0
#: Seconds that requests have to end in when the server is told to stop.
GOODBYE: Final = 20
#: Bytes that a request's head may have.
HEAD_LIMIT: Final = 32 * 1024
#: Connections and requests at a time; more are answered with 503.
MOST_CONNECTIONS: Final = 2_000


class PatientProtocol(H11Protocol):
    """A connection whose client has to keep up."""

    _head: asyncio.TimerHandle | None = None
    _answer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self.access_log = False  # whatever logging is set up to: a URL may hold a key
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Take what came: within time it has to be a whole head."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._head_came()
        elif self._head is None:
            self._await_head()

    def eof_received(self) -> None:
        """Take the end of what is sent for the client's going, as uvicorn does, from this moment on."""
        if self.cycle is not None:  # pyright: ignore[reportUnnecessaryComparison] - it is, before the first request
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        self._head_came()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for the client to read on."""
        super().pause_writing()
        if self._answer is None:
            self._answer = self.loop.call_later(ANSWER_PATIENCE, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the client has read."""
        if self._answer is not None:
            self._answer.cancel()
            self._answer = None
        super().resume_writing()

    def _await_head(self) -> None:
        self._head = self.loop.call_later(HEAD_PATIENCE, self.transport.abort)

    def _head_came(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


class Server(uvicorn.Server):
    """A server that tells the application when it is about to stop."""

    def __init__(self, config: uvicorn.Config, leave: Callable[[], None]) -> None:
        super().__init__(config)
        self._leave = leave

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Send those home who wait for messages, then stop."""
        self._leave()
        await super().shutdown(sockets)


def server(app: FastAPI, *, host: str, port: int, root_path: str = "") -> Server:
    """Return a server for the application that `create_app` made.

    It writes no log of requests: an EmoDB client may give its key in the URL.
    """
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        root_path=root_path,
        http=PatientProtocol,
        ws="none",
        lifespan="on",
        access_log=False,
        log_level="warning",
        server_header=False,
        h11_max_incomplete_event_size=HEAD_LIMIT,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=GOODBYE,
    )
    return Server(config, app.state.leave)
