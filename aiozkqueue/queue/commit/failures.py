"""The errors of writes that were not applied because their session ended or was closed, or whose outcome is unknown."""

from __future__ import annotations

from typing import Final

from aiozkqueue.errors import OutcomeUnknownError, SessionExpiredError

CLOSED: Final = "the session has been closed"
CLOSED_UNANSWERED: Final = "the session was closed before a server answered"


def expired(transaction_id: str) -> SessionExpiredError:
    """Return the error for a write whose session ended first."""
    return SessionExpiredError(
        f"transaction {transaction_id}: its ZooKeeper session ended before the commit was applied; nothing was "
        "applied, and its messages go to other consumers"
    )


def undecidable(transaction_id: str, why: str) -> OutcomeUnknownError:
    """Return the error for a write whose fate this session never learns."""
    return OutcomeUnknownError(
        f"transaction {transaction_id}: {why}; it may have been applied, and this session can no longer determine it: "
        "check the current state before you repeat it",
        transaction_id,
    )


def unknown(transaction_id: str, why: str, what: str | None = None) -> OutcomeUnknownError:
    """Return the error for a write whose fate is unknown for now."""
    return OutcomeUnknownError(
        f"{what or f'transaction {transaction_id}'}: {why}; whether it was applied is not known yet; `await "
        "session.outcome(error.transaction_id)` returns the outcome when it is",
        transaction_id,
    )
