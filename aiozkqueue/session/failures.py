"""Failures of handlers and of settlements: the decision that a handler's error makes, and their log records."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import ClaimLostError, Reject, Retry
from aiozkqueue.runtime.exception_groups import leaves_of, only_of

from .unit_of_work import REDELIVERY_ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiozkqueue.queue.state.given_up import GivenUp

    from .unit_of_work import UnitOfWork

log: Final = logging.getLogger(__name__)


@contextmanager
def failure_logged(work: UnitOfWork, error: Exception) -> Iterator[None]:
    """Log the error of a handler, whose messages the block settles, unless it is a decision: `Retry` or `Reject`.

    If a message is about to be given up, its end logs the exception. If no message is given up in the block after all,
    the exception is logged at the end of the block.
    """
    if decision_of(error) is not None:
        yield
        return
    last = [claim for claim in work.claims if work.gives_up(claim)]
    _log_failure(work, error, shown=not last)
    if not last:
        yield
        return
    given_up: list[GivenUp] = []
    callbacks = last[0].state.given_up_callbacks
    callbacks.append(given_up.append)
    try:
        yield
    finally:
        callbacks.remove(given_up.append)
        if not any(end.claim in last for end in given_up):
            log.warning(
                "queue %s: message %s could not be given up after its last attempt, which failed with this error:",
                last[0].state.name,
                last[0].id,
                exc_info=error,
                extra=last[0].log_ids(work.id),
            )


def _log_failure(work: UnitOfWork, error: Exception, *, shown: bool) -> None:
    """Log that a handler has failed on a message or a batch; ``shown``: with the exception."""
    first, *more = work.claims
    name, exception, context = first.state.name, error if shown else None, _context(work)
    if more:
        text = "queue %s: handler failed on a batch of %d messages, from %s on"
        log.warning(text, name, len(more) + 1, first.id, exc_info=exception, extra=context)
    else:
        text = "queue %s: handler failed on message %s, attempt %d: %s"
        end = work.predict_disposition(first, describe(error))
        log.warning(text, name, first.id, first.attempt, end, exc_info=exception, extra=context)


def log_unsettled(work: UnitOfWork, error: BaseException) -> None:
    """Log that the commit of a message or a batch has failed; the usual errors have no traceback."""
    first, *more = work.claims
    subject, context = f"a batch of {len(more) + 1} messages" if more else f"message {first.id}", _context(work)
    if isinstance(error, REDELIVERY_ERRORS):
        fate = "is not committed" if isinstance(error, ClaimLostError) else "is redelivered"
        log.warning("queue %s: %s %s: %s", first.state.name, subject, fate, error, extra=context)
    else:
        log.error("queue %s: %s could not be settled", first.state.name, subject, exc_info=error, extra=context)


def _context(work: UnitOfWork) -> dict[str, object]:
    """Return ``extra=`` for a log record about the messages of a unit of work."""
    first, *more = work.claims
    return {"queue": first.state.name, "transaction_id": work.id} if more else first.log_ids(work.id)


def decision_of(error: BaseException) -> Retry | Reject | None:
    """Return the `Retry` or `Reject` by which a handler ended, alone or in a group; None: it ended by another error."""
    only = only_of(error)
    return only if isinstance(only, Retry | Reject) else None


def describe(error: BaseException) -> str:
    """Describe an error, and the exceptions of a group, for the record of attempts."""
    leaves = list(leaves_of(error))
    if len(leaves) == 1:
        return _text_of(leaves[0])[:1000]
    return f"{_text_of(error)}: {'; '.join(map(_text_of, leaves))}"[:1000]


def _text_of(error: BaseException) -> str:
    name = type(error).__name__
    try:
        return f"{name}: {error}".removesuffix(": ")
    except Exception as failure:  # noqa: BLE001 - its ``__str__`` may raise any error; the message must be settled
        return f"{name}, whose text cannot be shown: {type(failure).__name__}"
