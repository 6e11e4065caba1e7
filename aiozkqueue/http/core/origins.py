"""Checks of the origin of requests without a key. Pure.

Any web site can make a browser send such a request to an internal server.
Requests with a key are not checked, because other sites do not know the key.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

#: Top-level domains that do not exist in public DNS, so that no other site can point such a name to an internal server.
_PRIVATE: Final = frozenset({"localhost", "local", "internal", "lan", "test", "invalid", "arpa"})


def is_cross_site(request: Request) -> bool:
    """Whether a browser sends the request for a page of another site."""
    headers = request.headers
    if headers.get("sec-fetch-site", "none") not in {"same-origin", "none"}:
        return True
    own = headers.get("host", "").lower()
    named = [text for text in (headers.get("origin"), headers.get("referer")) if text is not None]
    return any(_authority(text) != own for text in named)


def is_safe_host(request: Request, hosts: Sequence[str] | None) -> bool:
    """Whether the server's name in the request cannot belong to another site; prevents DNS rebinding.

    Such names are addresses, names without a dot or below a domain that is not public, and ``hosts``, where ``"*"``
    means any.
    """
    if hosts is None or "*" in hosts:
        return True
    host = _hostname(request.headers.get("host", ""))
    if host in {name.lower() for name in hosts} or "." not in host or host.rpartition(".")[2] in _PRIVATE:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _hostname(authority: str) -> str:
    try:
        return (urlsplit(f"//{authority}").hostname or "").rstrip(".")
    except ValueError:
        return "?.?"


def _authority(url: str) -> str:
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return ""
