"""The undoing of a unit of work after an error of its block, of its handler, or of a commit that was not sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .failures import describe

if TYPE_CHECKING:
    from .unit_of_work import UnitOfWork


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
