"""The ids attached to log records, so that records can be searched by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiozkqueue.queue.state.claim import Claim


def about(claim: Claim, transaction_id: str | None = None) -> dict[str, object]:
    """Return ``extra=`` for a log record about a message and, if given, the transaction or delivery that decides it."""
    ids: dict[str, object] = {"queue": claim.state.name, "message_id": claim.id, "attempt": claim.attempt}
    if transaction_id is not None:
        ids["transaction_id"] = transaction_id
    return ids
