"""The error of an address on which a command cannot listen."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from aiozkqueue.cli.exits import CommandFailedError

if TYPE_CHECKING:
    from collections.abc import Iterator

_REMEDIES: Final = {
    errno.EADDRINUSE: "; another process uses it: choose another port, or 0 for a free one",
    errno.EACCES: "; ports below 1024 need root: choose another port",
    errno.EADDRNOTAVAIL: "; this machine does not have that address: choose another host, or 0.0.0.0 for all",
}


@contextmanager
def listening_at(options: str) -> Iterator[None]:
    """Name the options of an address in the error if the block cannot listen on it. Raises: CommandFailedError."""
    try:
        yield
    except OverflowError as error:
        msg = f"{options}: ports end at 65535: choose another port"
        raise CommandFailedError(msg) from error
    except OSError as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        msg = f"{options}: {reason}{_REMEDIES.get(error.errno or 0, '')}"
        raise CommandFailedError(msg) from error
