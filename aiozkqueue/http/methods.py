"""HEAD and OPTIONS for every path, and the headers of every response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.responses import Response
from starlette.routing import Match

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.routing import BaseRoute
    from starlette.types import Message, Scope, Send

_METHODS: Final = ("DELETE", "GET", "POST")
_READ_ONLY: Final = "aiozkqueue.head"
#: Browsers must not guess a content type, and caches must not store a response: a poll changes the queue.
_SAFE: Final = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


def as_routed(scope: Scope) -> Scope:
    """Return a HEAD as a GET that changes nothing. The server omits the body of the response."""
    return {**scope, "method": "GET", _READ_ONLY: True} if scope["method"] == "HEAD" else scope


def is_read_only(request: Request) -> bool:
    """Whether the request is a HEAD, which must change nothing."""
    return _READ_ONLY in request.scope


def allowed(routes: Sequence[BaseRoute], scope: Scope) -> list[str]:
    """Return the methods of a path; empty if there is no such path."""
    found = {
        method
        for method in _METHODS
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)
    }
    if "GET" in found:
        found.add("HEAD")
    return sorted(found | {"OPTIONS"}) if found else []


def options(methods: Sequence[str]) -> Response:
    """Return the response to OPTIONS. It has no CORS headers, so other sites are not allowed anything."""
    return Response(
        status_code=204, headers={"Allow": ", ".join(methods), **{k.decode(): v.decode() for k, v in _SAFE}}
    )


def with_safe_headers(send: Send, routes: Sequence[BaseRoute], scope: Scope) -> Send:
    """Return a ``send`` that adds missing headers, and drops the body of the response to a HEAD."""

    async def added(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ())]
            names = {name.lower() for name, _ in headers}
            headers += [header for header in _SAFE if header[0] not in names]
            if message["status"] == 405:  # noqa: PLR2004 - Method Not Allowed
                allow = ", ".join(allowed(routes, scope)).encode()
                headers = [header for header in headers if header[0].lower() != b"allow"] + [(b"allow", allow)]
            message = {**message, "headers": headers}
        elif _READ_ONLY in scope and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return added
