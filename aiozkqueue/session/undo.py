"""The undoing of a unit of work after an error of its block, of its handler, or of a commit that was not sent.

Also the meaning of the error of a handler, and its log.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import Reject, Retry
from aiozkqueue.queue.state.log_context import about
from aiozkqueue.runtime.exception_groups import leaves_of, only_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.state.given_up import GivenUp

    from .unit_of_work import UnitOfWork

log: Final = logging.getLogger(__name__)


async def commit_or_undo(work: UnitOfWork, timeout: float | None = None) -> None:
    """Commit; undo the work if the commit failed before it was sent. Raises: as `UnitOfWork.commit`."""
    try:
        await work.commit(timeout)
    except BaseException as error:
        await undo_unsent(work, error)
        raise


async def undo_unsent(work: UnitOfWork, error: BaseException) -> None:
    """Undo work whose commit failed before it was sent."""
    if work.open:
        await undo(work, error)


async def undo(work: UnitOfWork, error: BaseException | None, *, rewrite: bytes | None = None) -> None:
    """Undo work that ended with this error; None: its loop was left without one.

    After an interruption, such as a cancellation, the messages are available at once: it says nothing about them. After
    any other error they are released after the policy's delay. ``rewrite`` is as for `UnitOfWork.rollback`.
    """
    if isinstance(error, Exception):
        await work.rollback(None, describe(error), cause=error, rewrite=rewrite)
    else:
        await work.rollback(0, rewrite=rewrite)


@contextmanager
def traced_once(work: UnitOfWork, claims: Sequence[Claim], error: BaseException) -> Iterator[BaseException | None]:
    """Yield the exception for the log of a failed attempt at these messages, which the block settles.

    It is None if a message is about to be given up, because that is logged with the exception. If no message is given
    up in the block after all, its end logs the exception.
    """
    last = [claim for claim in claims if work.gives_up(claim)]
    if not last:
        yield error
        return
    given_up: list[GivenUp] = []
    callbacks = last[0].state.given_up_callbacks
    callbacks.append(given_up.append)
    try:
        yield None
    finally:
        callbacks.remove(given_up.append)
        if not any(end.claim in last for end in given_up):
            log.warning(
                "queue %s: message %s could not be given up after its last attempt, which failed with this error:",
                last[0].state.name,
                last[0].id,
                exc_info=error,
                extra=about(last[0], work.id),
            )


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
