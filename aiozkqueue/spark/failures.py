"""What fails inside a job, told as it was raised there: Spark wraps it into its own error, with two stack traces."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pyspark.errors import PySparkException

from aiozkqueue import errors
from aiozkqueue.errors import OutcomeUnknownError, QueueError

if TYPE_CHECKING:
    from collections.abc import Iterator

# The last line of a traceback in a task, or in a planner, which puts the name into quotes of its own.
_RAISED: Final = re.compile(r"aiozkqueue\.errors\.(\w+): (.+)")


@contextmanager
def plainly() -> Iterator[None]:
    """Raise the `QueueError` of a task in the place of Spark's error about it; others stay as they are."""
    try:
        yield
    except PySparkException as error:
        cause = cause_of(error)
        if cause is None:
            raise
        raise cause from error


def cause_of(error: PySparkException) -> QueueError | None:
    """Find the error of ours in one of Spark's; None when there is none."""
    raised = _RAISED.search(str(error))
    kind = getattr(errors, raised[1], None) if raised is not None else None
    if raised is None or not isinstance(kind, type) or not issubclass(kind, QueueError):
        return None
    if issubclass(kind, OutcomeUnknownError):
        return QueueError(raised[2])
    return kind(raised[2])
