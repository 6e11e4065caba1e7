"""Cancellations that come through a user's function: of the task that calls it, or of a task that it has awaited."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def task_is_cancelled() -> bool:
    """Whether the running task itself is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def as_failure(error: asyncio.CancelledError, function: str = "the handler") -> RuntimeError:
    """Return the failure of a function that let a foreign CancelledError escape, which must not end the listener."""
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
        if task_is_cancelled():
            raise
        raise as_failure(error, function) from error
