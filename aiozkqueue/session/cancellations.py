"""Cancellations that come through a user's function: of the task that calls it, or of a task that it has awaited."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def _task_is_cancelled() -> bool:
    """Whether the running task itself is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def failure_of(error: BaseException) -> Exception | None:
    """Return the failure of a handler that this error ended; None: the error ends the listener too.

    A foreign cancellation, of a task that the handler awaited, is a failure. A cancellation of the running task is not.
    """
    if isinstance(error, asyncio.CancelledError):
        return None if _task_is_cancelled() else _as_failure(error, "the handler")
    return error if isinstance(error, Exception) else None


def _as_failure(error: asyncio.CancelledError, function: str) -> RuntimeError:
    """Return the failure of a function that let a foreign CancelledError escape."""
    failure = RuntimeError(f"{function} was not cancelled, but a task that it awaited was")
    failure.__cause__ = error
    return failure


@contextmanager
def foreign_cancellations(function: str) -> Iterator[None]:
    """Call a function of the user in this block: a cancellation that is not of the running task is its failure.

    Raises: RuntimeError: the function let a foreign CancelledError escape.
    """
    try:
        yield
    except asyncio.CancelledError as error:
        if _task_is_cancelled():
            raise
        raise _as_failure(error, function) from error
