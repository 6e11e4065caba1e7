"""Who looks at the dashboard: a key in a cookie, and the proof that a form came from one of our pages.

The proof is an HMAC by the key itself, so any server accepts what another's page sends, and nothing is stored. Who has
no key has no proof: what is open to anonymous visitors is looking, never changing.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.http.names import http_name
from aiozkqueue.http.permissions import Verb

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from aiozkqueue.http.gate import Gate
    from aiozkqueue.http.keys import Caller

COOKIE: Final = "aiozkqueue-key"
_PURPOSE: Final = b"aiozkqueue dashboard form"


class Visitor(NamedTuple):
    """Who looks."""

    caller: Caller
    proof: str
    """What a form has to bring; empty for who has no key."""

    def may(self, verb: Verb, queue: str) -> bool:
        """Whether they may do this with a queue, named as in ZooKeeper."""
        named = http_name(queue)
        return self.caller.permissions.allows(verb, queue if named is None else named[1])

    def may_change(self, queue: str) -> bool:
        """Whether they may redrive and delete its dead letters."""
        return bool(self.proof) and self.may(Verb.MANAGE, queue)

    def proves(self, proof: str) -> bool:
        """Whether a form came from a page of theirs."""
        return bool(self.proof) and hmac.compare_digest(self.proof.encode(), proof.encode("utf-8", "replace"))


async def visitor(request: Request, gate: Gate) -> Visitor | None:
    """Tell who looks; None when that is nobody we know."""
    key = request.cookies.get(COOKIE)
    caller = await gate.bearer(key) if key else None
    if caller is not None and key:
        return Visitor(caller, hmac.digest(key.encode(), _PURPOSE, sha256).hex())
    caller = await gate.bearer(None)
    return None if caller is None else Visitor(caller, "")


def remember(request: Request, response: Response, key: str) -> None:
    """Let the browser bear the key until it is closed."""
    response.set_cookie(
        COOKIE,
        key,
        path=request.scope.get("root_path", "") or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def forget(request: Request, response: Response) -> None:
    """Let the browser forget the key."""
    response.delete_cookie(COOKIE, path=request.scope.get("root_path", "") or "/", httponly=True, samesite="strict")


def is_from_elsewhere(request: Request) -> bool:
    """Whether a browser says that another site makes it send this."""
    return request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}
