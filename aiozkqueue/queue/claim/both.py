"""Forwards claim events to two dispatchers of first queue when a session takes with different filters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiozkqueue.queue.state.claim import Claim, Fate
    from aiozkqueue.queue.state.queue_state import ClaimListener


class Both:
    """Fan-out of `ClaimListener` calls to two dispatchers of first queue that take with different filters."""

    def __init__(self, first: ClaimListener, second: ClaimListener) -> None:
        self._first = first
        self._second = second

    def claim_settled(self, claim: Claim, fate: Fate) -> None:
        """See `ClaimListener`."""
        self._first.claim_settled(claim, fate)
        self._second.claim_settled(claim, fate)

    def retry_at(self, due: int, message_id: str) -> None:
        """See `ClaimListener`."""
        self._first.retry_at(due, message_id)
        self._second.retry_at(due, message_id)

    def keep(self, claim: Claim, delay: float) -> None:
        """See `ClaimListener`."""
        self._first.keep(claim, delay)
