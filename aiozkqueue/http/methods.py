"""HEAD and OPTIONS for every path, and the headers that every answer has."""

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
_ONLY_LOOKS: Final = "aiozkqueue.head"
#: Browsers must not guess what an answer is; no cache may keep one: a poll changes things.
_SAFE: Final = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))


def as_routed(scope: Scope) -> Scope:
    """Return a HEAD as a GET that only looks: the server leaves the body of its answer out."""
    return {**scope, "method": "GET", _ONLY_LOOKS: True} if scope["method"] == "HEAD" else scope


def only_looks(request: Request) -> bool:
    """Whether this is a HEAD, which must change nothing."""
    return _ONLY_LOOKS in request.scope


def allowed(routes: Sequence[BaseRoute], scope: Scope) -> list[str]:
    """Return the methods that a path has; none: there is no such path."""
    found = {
        method
        for method in _METHODS
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)
    }
    if "GET" in found:
        found.add("HEAD")
    return sorted(found | {"OPTIONS"}) if found else []


def options(methods: Sequence[str]) -> Response:
    """Return the answer to OPTIONS. It allows no other site anything: it has no headers of CORS."""
    return Response(
        status_code=204, headers={"Allow": ", ".join(methods), **{k.decode(): v.decode() for k, v in _SAFE}}
    )


def with_safe_headers(send: Send, routes: Sequence[BaseRoute], scope: Scope) -> Send:
    """Return a ``send`` that adds headers where an answer does not have them, and drops the body of one to a HEAD."""

    async def added(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ())]
            names = {name.lower() for name, _ in headers}
            headers += [one for one in _SAFE if one[0] not in names]
            if message["status"] == 405:  # noqa: PLR2004 - Method Not Allowed
                told = ", ".join(allowed(routes, scope)).encode()
                headers = [one for one in headers if one[0].lower() != b"allow"] + [(b"allow", told)]
            message = {**message, "headers": headers}
        elif _ONLY_LOOKS in scope and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return added
