"""How long a listing is on the wire, and the warning before it is too long for other clients."""

from __future__ import annotations

import logging
from typing import Final

log: Final = logging.getLogger(__name__)

#: The share of the server's buffer from which on a listing is warned about. A Java client reads none that exceeds it.
LONG_LISTING: Final = 0.8


def warn_of_length(queue: str, lane: str, length: int, max_request: int) -> bool:
    """Warn of a listing of so many bytes if it is too long, or soon will be; return whether it is."""
    if length <= LONG_LISTING * max_request:
        return False
    log.warning(
        "queue %s: a listing of %s takes %d bytes; a Java client reads none of more than %d, and every listing stalls "
        "the server: spread it with QueueConfig(shards=...)",
        queue,
        lane,
        length,
        max_request,
        extra={"queue": queue},
    )
    return True
