"""The size of a listing on the wire, and a warning before it is too large for other clients."""

from __future__ import annotations

import logging
from typing import Final

log: Final = logging.getLogger(__name__)

#: The share of the server's buffer above which a listing causes a warning. A Java client reads no listing beyond it.
LONG_LISTING: Final = 0.8


def warn_of_length(queue: str, lane: str, length: int, max_request: int) -> bool:
    """Warn if a listing of ``length`` bytes is too large, or soon will be; return whether it is."""
    if length <= LONG_LISTING * max_request:
        return False
    log.warning(
        "queue %s: a listing of %s takes %d bytes; a Java client cannot read more than %d, and every listing stalls "
        "the server: spread the queue with QueueConfig(shards=...)",
        queue,
        lane,
        length,
        max_request,
        extra={"queue": queue},
    )
    return True
