"""The ASGI application: both services, and what tells whether the server is well."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from .api import SECURITY, Api, router
from .backend import Backend, Settings
from .dashboard.pages import router as dashboard
from .names import Kind
from .parameters import with_slashes_kept
from .permissions import Verb

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

    from starlette.types import Receive, Scope, Send

    from aiozkqueue.queue.session import QueueSession


class _Service(FastAPI):
    """An application whose document tells how a key is given."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        await super().__call__(with_slashes_kept(scope), receive, send)

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        document = super().openapi()
        document.setdefault("components", {})["securitySchemes"] = SECURITY
        return document


def create_app(
    connecting: Callable[[], AbstractAsyncContextManager[QueueSession]], settings: Settings | None = None
) -> FastAPI:
    """Return the service as an ASGI application, to be run by uvicorn or mounted in another.

    ``connecting`` opens the queue session, ``lambda: aiozkqueue.connect(...)``: when the application's lifespan begins;
    it is closed when that ends. An application that mounts it runs that lifespan within its own:
    ``async with service.router.lifespan_context(service): ...``. Before its server stops it may call
    ``service.state.leave()``: requests that wait for messages are answered at once, with none.
    """
    backend = Backend(settings or Settings())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with backend.running(connecting):
            yield

    app = _Service(
        title="aiozkqueue",
        summary="EmoDB's QueueService on ZooKeeper",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.leave = backend.leaving.set
    for kind in Kind:
        app.include_router(router(Api(backend, kind), kind))
    app.include_router(dashboard(backend))
    _add_health(app, backend)
    return app


def _add_health(app: FastAPI, backend: Backend) -> None:
    @app.get("/ping", include_in_schema=False)
    async def ping() -> Response:
        return PlainTextResponse("pong")

    @app.get("/live", include_in_schema=False)
    async def live() -> Response:
        """The process serves requests: restart it when this fails."""
        return JSONResponse({"live": True})

    @app.get("/ready", include_in_schema=False)
    async def ready(_: Request) -> Response:
        """ZooKeeper answers, too: send no requests here while this fails."""
        return JSONResponse({"ready": backend.connected}, 200 if backend.connected else 503)

    @app.get("/metrics", include_in_schema=False)
    async def metrics(request: Request) -> Response:
        """For Prometheus: its key may see the status of all queues."""
        return await backend.patient(_metrics_of(backend))(request)


def _metrics_of(backend: Backend) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def told(request: Request) -> Response:
        await backend.gate.admit(request, Verb.GET_STATUS, "*")
        if backend.metrics is None:
            return PlainTextResponse("this needs aiozkqueue[observability]", 501)
        return Response(backend.metrics.text(), headers={"Content-Type": backend.metrics.content_type})

    return told
