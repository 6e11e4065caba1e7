"""The health checks of a server, also on a separate port for the tools of Ostrich and Dropwizard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastapi import APIRouter
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from .core.backend import Backend

#: Paths that are served even if the maximum number of connections is reached.
PATHS: Final = frozenset({"/ping", "/live", "/ready", "/healthcheck"})


class Health:
    """The handlers."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def ping(self, _: Request) -> Response:
        """Return ``pong``."""
        return PlainTextResponse("pong")

    async def live(self, _: Request) -> Response:
        """Report that the process serves requests. Restart it if this fails."""
        return JSONResponse({"live": True})

    async def ready(self, _: Request) -> Response:
        """Report that ZooKeeper answers and the server is not stopping. Send no requests here while this fails."""
        return JSONResponse({"ready": self._backend.connected}, 200 if self._backend.connected else 503)

    async def healthcheck(self, _: Request) -> Response:
        """Report the same in Dropwizard's format. EmoDB's Java clients skip a server while this is not 200."""
        healthy = self._backend.connected
        return JSONResponse({"zookeeper": {"healthy": healthy}}, 200 if healthy else 503)


def router(backend: Backend) -> APIRouter:
    """Return the routes for the service's own port."""
    health, routes = Health(backend), APIRouter(include_in_schema=False)
    for path in sorted(PATHS):
        routes.add_route(path, getattr(health, path.removeprefix("/")), methods=["GET"])
    return routes


def admin(backend: Backend, metrics: Callable[[Request], Awaitable[Response]]) -> Starlette:
    """Return an application with only these routes and ``/metrics``, for the admin port."""
    health = Health(backend)
    routes = [Route(path, getattr(health, path.removeprefix("/"))) for path in sorted(PATHS)]
    return Starlette(routes=[*routes, Route("/metrics", metrics)])
