"""``/live``, ``/ready`` and ``/metrics`` over HTTP, for systemd, Kubernetes, load balancers and Prometheus."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol, Self

from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import State

if TYPE_CHECKING:
    from types import TracebackType

    from aiozkqueue import QueueSession
    from aiozkqueue.session.background import Service

#: Limits of a request, in bytes and seconds. Probes send a line and a few headers.
_REQUEST_LIMIT: Final = 8192
_REQUEST_TIMEOUT: Final = 5.0
#: Requests at a time. Each takes a file descriptor, which the worker needs for ZooKeeper.
_MOST: Final = 64
_PLAIN: Final = "text/plain; charset=utf-8"


class Metrics(Protocol):
    """The collector of a session's metrics for Prometheus."""

    @property
    def content_type(self) -> str:
        """The content type of the text."""
        ...

    async def text(self) -> bytes:
        """Return all metrics as text."""
        ...


class Health:
    """Reports the health of a worker on a port while its block runs.

    ``/live`` is 200 as long as the event loop runs. ``/ready`` is 200 while messages can be taken: there is a
    connection, and the worker is not stopping; otherwise it is 503, with the reason in the body. ``/metrics`` returns
    the metrics, if there are any.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._responding: dict[asyncio.Task[None], None] = {}  # in order of arrival
        self._session: QueueSession | None = None
        self._metrics: Metrics | None = None
        self._stopping = False

    async def __aenter__(self) -> Self:
        """Listen. Raises: OSError: the address is not available."""
        self._server = await asyncio.start_server(self._accept, self._host, self._port, limit=_REQUEST_LIMIT)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
            for task in self._responding:
                task.cancel()
            await asyncio.gather(*self._responding, return_exceptions=True)
            await self._server.wait_closed()

    @property
    def address(self) -> str:
        """The address on which it listens, as ``host:port``."""
        assert self._server is not None  # noqa: S101 - entered
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def watch(self, session: QueueSession) -> None:
        """Report ready when this session is ready."""
        self._session = session

    def measure(self, metrics: Metrics | None) -> None:
        """Answer ``/metrics`` with these from now on; None: 501, because its packages are not installed."""
        self._metrics = metrics

    def reporting(self, service: Service) -> Service:
        """Return the service; once it is stopped, the worker is no longer ready."""
        return _StopReporting(self, service)

    def stopping(self) -> None:
        """Record that the worker is stopping."""
        self._stopping = True

    @property
    def unready_reason(self) -> str | None:
        """The reason why no messages can be taken; None: they can."""
        if self._stopping:
            return "stopping"
        if self._session is None:
            return "connecting"
        state = core_of(self._session).zookeeper.state
        return None if state is State.CONNECTED else state.name.lower()

    # -- requests

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._responding) >= _MOST:
            # The oldest request is dropped to make room: a probe is answered at once.
            oldest = next(iter(self._responding))
            oldest.cancel()
            self._responding.pop(oldest)
        task = asyncio.get_running_loop().create_task(self._answer(reader, writer), name="health")
        self._responding[task] = None
        task.add_done_callback(lambda done: self._responding.pop(done, None))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._response(request))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a probe that fails like this is repeated by its sender
        finally:
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()  # the sender does not read
            else:
                writer.close()

    async def _response(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path = rest.split(b" ", 1)[0].partition(b"?")[0]
        if method not in {b"GET", b"HEAD"}:
            status, kind, body = "405 Method Not Allowed", _PLAIN, b"GET or HEAD\n"
        elif path == b"/metrics" and self._metrics is not None:
            status, kind, body = "200 OK", self._metrics.content_type, await self._metrics.text()
        else:
            status, text = self._state(path)
            kind, body = _PLAIN, f"{text}\n".encode()
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        ).encode()
        return head if method == b"HEAD" else head + body

    def _state(self, path: bytes) -> tuple[str, str]:
        if path == b"/live":
            return "200 OK", "live"
        if path == b"/ready":
            unready_reason = self.unready_reason
            return ("200 OK", "ready") if unready_reason is None else ("503 Service Unavailable", unready_reason)
        if path == b"/metrics" and self._session is None:
            return "503 Service Unavailable", "connecting"
        if path == b"/metrics":
            return "501 Not Implemented", "this needs aiozkqueue[observability]"
        return "404 Not Found", "/live, /ready or /metrics"


class _StopReporting:
    """A service that reports its stop to the endpoint."""

    def __init__(self, health: Health, service: Service) -> None:
        self._health = health
        self._service = service

    def __str__(self) -> str:
        return str(self._service)

    async def run(self) -> None:
        """See `Service`."""
        await self._service.run()

    def stop(self) -> None:
        """See `Service`."""
        self._health.stopping()
        self._service.stop()

    def abort(self) -> None:
        """See `Service`."""
        self._service.abort()
