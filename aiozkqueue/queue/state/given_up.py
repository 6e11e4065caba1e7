"""Messages that are given up: each is logged as an error, and passed to the functions registered for it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from .claim import Claim

log: Final = logging.getLogger(__name__)


class GivenUp(NamedTuple):
    """A message that became a dead letter or was dropped without having been processed, and why."""

    claim: Claim
    fate: str
    reason: str
    moment: int
    """ms, in ZooKeeper's time"""
    cause: BaseException | None
    """The exception of its last attempt, if there was one in this process."""

    def report(self, transaction_id: str) -> None:
        """Log it, and call the functions of its queue."""
        log.error(
            "queue %s: message %s is %s: %r",  # %r keeps payload-derived text on one line
            self.claim.state.name,
            self.claim.id,
            self.fate,
            self.reason,
            exc_info=self.cause,
            extra=self.claim.log_ids(transaction_id),
        )
        for callback in tuple(self.claim.state.given_up_callbacks):
            callback(self)
