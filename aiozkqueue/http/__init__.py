"""Queues over HTTP: EmoDB's QueueService contract, for clients in any language.

A request passes ``server`` (uvicorn with deadlines; ``connection_limit`` and ``listening`` for its sockets), ``app``
(the ASGI application; ``methods`` for HEAD and OPTIONS), and ``api``, with one function for each operation. That reads
the ``request_messages``, calls `core.service`, and answers, often with ``messages``; ``waiting`` ends a long poll whose
client is gone. ``dashboard`` has the pages, ``health`` the health checks, ``client`` a client, and ``discovery`` the
registry in which clients find servers.

`aiozkqueue.http.app` needs ``aiozkqueue[http]``. Pure modules, such as `aiozkqueue.http.core.keys`, work without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiozkqueue.extras import needs

from .core.keys import KeyInfo, Keys
from .core.permissions import Permissions, Verb

if TYPE_CHECKING:
    from .app import create_app
    from .core.backend import Settings

__all__ = ["KeyInfo", "Keys", "Permissions", "Settings", "Verb", "create_app"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any requested name
    """Import the names that need the extra on their first use."""
    if name == "create_app":
        with needs("http"):
            from .app import create_app  # noqa: PLC0415 - needs the extra

        return create_app
    if name == "Settings":
        with needs("http"):
            from .core.backend import Settings  # noqa: PLC0415 - needs the extra

        return Settings
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
