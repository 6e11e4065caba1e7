"""The ASGI application: both services and the health checks."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response

from . import health, methods
from .api import SECURITY, Api, router
from .core.backend import Backend, Settings
from .core.gate import key_of
from .core.names import Kind
from .core.parameters import with_slashes_kept
from .core.permissions import Verb
from .dashboard import routes as dashboard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from starlette.types import Receive, Scope, Send

    from .core.backend import Connecting


class _Service(FastAPI):
    """An application whose OpenAPI document describes how to send a key."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        scope = methods.as_routed(with_slashes_kept(scope))
        if scope["method"] == "OPTIONS" and (allowed := methods.allowed(self.routes, scope)):
            await methods.options(allowed)(scope, receive, send)
            return
        await super().__call__(scope, receive, methods.with_safe_headers(send, self.routes, scope))

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        document = super().openapi()
        document.setdefault("components", {})["securitySchemes"] = SECURITY
        return document


def create_app(
    connecting: Connecting, settings: Settings | None = None, *, listing: Connecting | None = None
) -> FastAPI:
    """Return the service as an ASGI application, to be run by uvicorn or mounted in another.

    ``connecting`` opens the queue session when the application's lifespan begins, e.g. ``lambda:
    aiozkqueue.connect(...)``; the session is closed when the lifespan ends. ``listing`` opens a second session, in
    which the dashboard lists queues with very many messages: ZooKeeper answers the requests of a session in their
    order, so all others would wait behind such a listing. Without it, ``connecting`` opens both.

    An application that mounts the service must run the service's lifespan within its own: ``async with
    service.router.lifespan_context(service): ...``. Call ``service.state.leave()`` before the server stops: requests
    that wait for messages then return immediately without any, and ``/ready`` returns 503. ``service.state.admin`` is
    an ASGI application for an admin port, with the paths of `health.PATHS` and ``/metrics``.
    """
    backend = Backend(settings or Settings())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with backend.running(connecting, listing or connecting):
            yield

    app = _Service(
        title="aiozkqueue",
        summary="EmoDB's QueueService on ZooKeeper",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would contain the host of the request, which a client or proxy can forge
    )
    app.state.leave = backend.leaving.set
    for kind in Kind:
        app.include_router(router(Api(backend, kind), kind))
    app.include_router(dashboard.router(backend))
    app.add_exception_handler(HTTPException, dashboard.refusals(backend))
    app.include_router(health.router(backend))
    metrics = _metrics(backend)
    app.add_api_route("/metrics", metrics, include_in_schema=False, response_model=None)
    app.state.admin = health.admin(backend, metrics)
    return app


def _metrics(backend: Backend) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def metrics(request: Request) -> Response:
        """Metrics for Prometheus. The key must allow the status of all queues; only a key needs ZooKeeper."""
        return await backend.limited(_metrics_of(backend), lambda asked: bool(key_of(asked)))(request)

    return metrics


def _metrics_of(backend: Backend) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def answer(request: Request) -> Response:
        await backend.parts.gate.admit(request, Verb.GET_STATUS, "*")
        if backend.metrics is None:
            return PlainTextResponse("this needs aiozkqueue[observability]", 501)
        return Response(backend.metrics.text(), headers={"Content-Type": backend.metrics.content_type})

    return answer
