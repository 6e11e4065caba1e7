"""How a transaction or delivery ended."""

from __future__ import annotations

import enum


class Outcome(enum.Enum):
    """How a transaction or delivery ended."""

    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"
    """A commit is in flight, or was when the caller stopped waiting; `QueueSession.outcome` waits for the answer."""
