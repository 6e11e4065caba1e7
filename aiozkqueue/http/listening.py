"""Sockets to listen on."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Final

try:
    import resource
except ImportError:  # pragma: no cover - not on Windows
    resource = None  # type: ignore[assignment]

#: Connections that the system keeps until they are accepted, and that are accepted in one turn of the loop: fewer than
#: one address may have, so that those of one turn do not push each other out before any is heard.
BACKLOG: Final = 256
#: File descriptors that are kept for ZooKeeper, files and health checks.
_SPARED: Final = 128


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address, whose connections send what is written at once.

    asyncio sets TCP_NODELAY only on sockets that say that they are TCP, which those of `socket.create_server` do not.
    Without it an answer's body waits until the client has acknowledged its head, 40 ms later.

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
    """Return where a socket listens, as ``host:port``."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def most_connections(wanted: int) -> int:
    """Return how many connections this process can have, at most ``wanted``: each takes a file descriptor."""
    if resource is None:
        return wanted  # type: ignore[unreachable]
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - _SPARED))
