"""Free TCP ports from ranges that outgoing connections do not use."""

from __future__ import annotations

import random
import socket
from typing import Final

# Below the ranges from which Linux (32768-) and macOS (49152-) assign ports to outgoing connections, so that no
# client's socket takes the port of a server that is restarting.
_FIRST: Final = 10_240
_LAST: Final = 32_767
_random = random.SystemRandom()


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether the port is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Return this many different free ports of 127.0.0.1. Another process may take one before the caller binds it."""
    found: list[int] = []
    while len(found) < count:
        port = _random.randint(_FIRST, _LAST)
        if port not in found and is_free(port):
            found.append(port)
    return found
