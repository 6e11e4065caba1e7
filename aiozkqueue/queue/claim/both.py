"""What several dispensers of one queue are told together, in a session that takes by different filters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiozkqueue.queue.state.claim import Claim, Fate
    from aiozkqueue.queue.state.queue_state import ClaimListener


class Both:
    """Two dispensers of one queue in one session, that take by different filters."""

    def __init__(self, one: ClaimListener, other: ClaimListener) -> None:
        self._one = one
        self._other = other

    def claim_settled(self, claim: Claim, fate: Fate) -> None:
        """See `ClaimListener`."""
        self._one.claim_settled(claim, fate)
        self._other.claim_settled(claim, fate)

    def retry_at(self, due: int, message_id: str) -> None:
        """See `ClaimListener`."""
        self._one.retry_at(due, message_id)
        self._other.retry_at(due, message_id)

    def keep(self, claim: Claim, delay: float) -> None:
        """See `ClaimListener`."""
        self._one.keep(claim, delay)
