"""Starts streams on machines that are slower than Spark expects."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery

#: Spark's error if the Python process of a stream's source does not start within ten seconds, which is a fixed limit.
TOO_SLOW = "Python worker failed to connect back"
STARTS = 5


def started(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a stream, and try again while the process of its source starts too late to have used a queue."""
    for _ in range(STARTS - 1):
        query = start()
        while query.isActive and query.status["message"] == "Initializing sources":
            time.sleep(0.01)
        if TOO_SLOW not in str(query.exception()):
            return query
    return start()
