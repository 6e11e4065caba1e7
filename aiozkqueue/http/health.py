"""The health of a server, also on a port of its own, where the tools of Ostrich and Dropwizard ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastapi import APIRouter
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from starlette.requests import Request

    from .core.backend import Backend

#: Paths that are answered even when all connections are taken.
PATHS: Final = frozenset({"/ping", "/live", "/ready", "/healthcheck"})


class Health:
    """The handlers."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def ping(self, _: Request) -> Response:
        """Say ``pong``."""
        return PlainTextResponse("pong")

    async def live(self, _: Request) -> Response:
        """The process serves requests: restart it when this fails."""
        return JSONResponse({"live": True})

    async def ready(self, _: Request) -> Response:
        """ZooKeeper answers, too, and the server is not about to stop: send no requests here while this fails."""
        return JSONResponse({"ready": self._backend.connected}, 200 if self._backend.connected else 503)

    async def healthcheck(self, _: Request) -> Response:
        """The same in Dropwizard's form; EmoDB's Java clients leave a server out while it is not 200."""
        healthy = self._backend.connected
        return JSONResponse({"zookeeper": {"healthy": healthy}}, 200 if healthy else 503)


def router(backend: Backend) -> APIRouter:
    """Return the routes for the service itself."""
    health, routes = Health(backend), APIRouter(include_in_schema=False)
    for path in sorted(PATHS):
        routes.add_route(path, getattr(health, path.removeprefix("/")), methods=["GET"])
    return routes


def admin(backend: Backend) -> Starlette:
    """Return an application with these routes alone, for the admin port."""
    health = Health(backend)
    return Starlette(routes=[Route(path, getattr(health, path.removeprefix("/"))) for path in sorted(PATHS)])
