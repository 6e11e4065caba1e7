"""The dashboard's users: a key in a cookie, and a proof that a form came from one of our pages.

The proof is an HMAC with the key itself, so any server accepts a form of another server's page, and nothing is stored.
A visitor without a key has no proof: anonymous visitors may read, but never change anything.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.http.core.names import http_name
from aiozkqueue.http.core.permissions import Verb

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from aiozkqueue.http.core.gate import Gate
    from aiozkqueue.http.core.keys import Caller

COOKIE: Final = "aiozkqueue-key"
_PURPOSE: Final = b"aiozkqueue dashboard form"


class Visitor(NamedTuple):
    """The user of the dashboard."""

    caller: Caller
    proof: str
    """The token that a form must contain; empty for a user without a key."""

    def may(self, verb: Verb, queue: str) -> bool:
        """Whether the user may do this with a queue, named as in ZooKeeper."""
        named = http_name(queue)
        return self.caller.permissions.allows(verb, queue if named is None else named[1])

    def may_change(self, queue: str) -> bool:
        """Whether the user may change the queue, its messages and its dead letters."""
        return bool(self.proof) and self.may(Verb.MANAGE, queue)

    @property
    def sees_all(self) -> bool:
        """Whether the user may see the status of all queues."""
        return self.caller.permissions.allows(Verb.GET_STATUS, "*")

    def seal(self, text: str) -> str:
        """Return a mark of a text that only a server makes: a link with a forged text is not shown."""
        return hmac.digest(self.proof.encode(), text.encode("utf-8", "replace"), sha256).hex()

    def unsealed(self, query: Mapping[str, str]) -> str:
        """Return the result of the change that led to this page, from its address; empty without a change."""
        text, seal = query.get("done", ""), query.get("seal", "")
        sealed = bool(self.proof) and hmac.compare_digest(self.seal(text).encode(), seal.encode("utf-8", "replace"))
        return text if sealed else ""

    def proves(self, proof: str) -> bool:
        """Whether a form came from a page of this user."""
        return bool(self.proof) and hmac.compare_digest(self.proof.encode(), proof.encode("utf-8", "replace"))


async def visitor(request: Request, gate: Gate) -> Visitor | None:
    """Return the user of a request; None if its key is unknown."""
    key = request.cookies.get(_name(request))
    caller = await gate.bearer(request, key) if key else None
    if caller is not None and key:
        return Visitor(caller, hmac.digest(key.encode(), _PURPOSE, sha256).hex())
    caller = await gate.bearer(request, None)
    return None if caller is None else Visitor(caller, "")


def remember(request: Request, response: Response, key: str) -> None:
    """Set the cookie with the key, for the browser's session."""
    secure = _is_secure(request)
    response.set_cookie(_name(request), key, path=_path(request), secure=secure, httponly=True, samesite="strict")


def forget(request: Request, response: Response) -> None:
    """Delete the cookie with the key."""
    secure = _is_secure(request)
    response.delete_cookie(_name(request), path=_path(request), secure=secure, httponly=True, samesite="strict")


def _is_secure(request: Request) -> bool:
    return request.url.scheme == "https"


def _name(request: Request) -> str:
    """Return a cookie name that pages of plain HTTP, or of another host if the path allows, cannot set over HTTPS."""
    if not _is_secure(request):
        return COOKIE
    return f"__Host-{COOKIE}" if _path(request) == "/" else f"__Secure-{COOKIE}"


def _path(request: Request) -> str:
    path: str = request.scope.get("root_path", "") or "/"
    return path


def is_cross_site(request: Request) -> bool:
    """Whether the browser reports that another site caused this request."""
    return request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}
