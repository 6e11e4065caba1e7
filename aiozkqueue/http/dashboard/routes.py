"""The table of the pages, and the errors that they show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.exception_handlers import http_exception_handler
from starlette.exceptions import HTTPException
from starlette.responses import Response

from aiozkqueue.errors import AccessDeniedError, InvalidNameError, InvalidOptionError, PayloadError
from aiozkqueue.http.core import problems
from aiozkqueue.http.core.remedies import text_of
from aiozkqueue.sampling import UnreadableError

from .pages import (
    account,
    actions,
    buses,
    consumers,
    dead_letters,
    jobs,
    message,
    messages,
    moves,
    queue,
    queues,
    servers,
)
from .web import sign_in
from .web.files import STATIC
from .web.page import PageError, render
from .web.visit import Visit

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from aiozkqueue.http.core.backend import Backend

    Handler = Callable[[Request], Coroutine[Any, Any, Response]]
    Page = Callable[..., Coroutine[Any, Any, Response]]

_QUEUE = "/queues/{name}"
#: The pages for visitors with a key. A handler gets the visit, and the parts of the path.
_PAGES: tuple[tuple[str, str, Page], ...] = (
    ("GET", "/", queues.show),
    ("GET", "/dead-letters", dead_letters.of_all),
    ("GET", "/consumers", consumers.show),
    ("GET", "/jobs", jobs.show),
    ("POST", "/jobs", jobs.change),
    ("GET", "/buses", buses.show),
    ("GET", "/moves", moves.show),
    ("GET", "/servers", servers.show),
    ("GET", "/findings", servers.findings),
    ("GET", _QUEUE, queue.show),
    ("GET", f"{_QUEUE}/points", queue.points),
    ("POST", f"{_QUEUE}/actions", actions.ask),
    ("GET", f"{_QUEUE}/messages", messages.show),
    ("GET", _QUEUE + "/messages/{message_id}", message.show),
    ("GET", f"{_QUEUE}/dead-letters", dead_letters.show),
    ("POST", "/sign-out", account.leave),
)
#: The pages for everyone.
_ENTRANCE: tuple[tuple[str, str, Page], ...] = (
    ("GET", "/sign-in", account.show),
    ("POST", "/sign-in", account.enter),
)


def router(backend: Backend) -> APIRouter:
    """Return the routes of the dashboard, for the service's root."""
    routes = APIRouter(include_in_schema=False)
    for method, path, page in _PAGES:
        routes.add_api_route(path, _shown(backend, _visited(backend, page)), methods=[method], response_model=None)
    for method, path, page in _ENTRANCE:
        routes.add_api_route(path, _shown(backend, _entered(backend, page)), methods=[method], response_model=None)

    @routes.get("/static/{name}")
    async def static(name: str) -> Response:
        if name not in STATIC:
            return Response(status_code=404)
        content, kind = STATIC[name]
        headers = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
        return Response(content, media_type=kind, headers=headers)

    return routes


def refusals(backend: Backend) -> Callable[[Request, Exception], Coroutine[Any, Any, Response]]:
    """Return the handler of requests that have no route: a browser gets a page, other clients JSON."""

    async def missing(_: Visit) -> Response:
        raise PageError(404, "No such page", "The dashboard has no page with this address.")

    page = _shown(backend, _visited(backend, missing))

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for these
        if error.status_code == 404 and "text/html" in request.headers.get("accept", ""):  # noqa: PLR2004 - Not Found
            return await page(request)
        return await http_exception_handler(request, error)

    return refused


def _visited(backend: Backend, page: Page) -> Handler:
    async def handler(request: Request) -> Response:
        visitor = await sign_in.visitor(request, backend.parts.gate)
        if visitor is None:
            return account.ask(request)
        try:
            return await page(Visit(backend, request, visitor), **request.path_params)
        except PageError as error:
            return _problem(request, error.status, error.title, error.text, visitor)
        except (InvalidNameError, InvalidOptionError) as error:
            return _problem(request, 400, "That did not work", str(error), visitor)
        except (AccessDeniedError, PayloadError, UnreadableError) as error:
            status = 409 if PayloadError in {type(error), type(error.__cause__)} else 503
            subject = "queue" if "name" in request.path_params else "page"
            return _problem(request, status, f"This {subject} cannot be read", str(error), visitor)

    return handler


def _entered(backend: Backend, page: Page) -> Handler:
    async def handler(request: Request) -> Response:
        try:
            return await page(backend, request)
        except PageError as error:
            return _problem(request, error.status, error.title, error.text, None)

    return handler


def _shown(backend: Backend, handler: Handler) -> Handler:
    """Return a handler whose errors are shown as pages, those of the service included."""

    async def page(request: Request) -> Response:
        try:
            return await handler(request)
        except problems.ProblemError as problem:
            return problem.response
        except AccessDeniedError as error:  # for what the service stores itself
            return _problem(request, 503, "This page cannot be shown", str(error), None)

    limited = backend.limited(page)

    async def answered(request: Request) -> Response:
        response = await limited(request)
        if response.status_code < 400 or response.media_type == "text/html":  # noqa: PLR2004 - an error
            return response
        text = "ZooKeeper does not answer in time. Load the page again in a few seconds."
        if response.status_code == 429:  # noqa: PLR2004 - Too Many Requests
            text = "There are too many requests with this key. Load the page again in a few seconds."
        shown = _problem(request, response.status_code, "That did not work", text, None)
        if (after := response.headers.get("retry-after")) is not None:
            shown.headers["retry-after"] = after
        return shown

    return answered


def _problem(request: Request, status: int, title: str, text: str, visitor: sign_in.Visitor | None) -> Response:
    return render(request, "problem.html", visitor, status, title=title, text=text_of(text), offers_sign_in=False)
