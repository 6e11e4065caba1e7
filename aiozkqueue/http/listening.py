"""Listening sockets."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Final

try:
    import resource
except ImportError:  # pragma: no cover - not on Windows
    resource = None  # type: ignore[assignment]  # a module elsewhere

#: The length of the system's accept queue, and the number of connections accepted in one turn of the event loop. It is
#: less than the share of one address: connections of one turn then do not close each other before any sends a request.
BACKLOG: Final = 256
#: File descriptors that are reserved for ZooKeeper, files and health checks.
_SPARED: Final = 128


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address and whose connections send without delay.

    asyncio sets TCP_NODELAY only on sockets whose protocol is TCP, and `socket.create_server` does not set the
    protocol. Without TCP_NODELAY, the body of a response waits until the client has acknowledged the head, 40 ms later.

    Raises: OSError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            with suppress(AttributeError, OSError):
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def address_of(listening: socket.socket) -> str:
    """Return the address of a socket as ``host:port``."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def most_connections(wanted: int) -> int:
    """Return the number of connections that the file descriptors of this process allow, up to ``wanted``."""
    if resource is None:
        return wanted  # type: ignore[unreachable]  # on Windows
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - _SPARED))
