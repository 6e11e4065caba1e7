"""Unwraps errors that were raised inside a job. Spark wraps them into its own error with two stack traces."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from aiozkqueue import errors
from aiozkqueue.errors import OutcomeUnknownError, QueueError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Spark's errors: its own classes, and the class of all JVM errors that have none.
SPARK_ERRORS: Final[tuple[type[Exception], ...]] = (PySparkException, Py4JJavaError)

# The error condition in a Spark message, and the line that contains it.
_CONDITION: Final = re.compile(r"\[([A-Z][A-Z0-9_]*)(?:[.][A-Z0-9_]+)*\] (.+)")
# The lines of a Java error that name an exception and its message: the error itself, and its causes.
_CAUSES: Final = re.compile(r"^(?:: |Caused by: )([\w.$]+: .+)", re.MULTILINE)
# The line with our error in a traceback of a task or a planner.
_RAISED: Final = re.compile(r"aiozkqueue\.errors\.(\w+): (.+)")

# Spark's wording for a CSV file whose header differs from that of the first file, repeats a name or lacks one.
_UNFIT_HEADER: Final = re.compile(r"CSV header does not conform to the schema[.]\s+Header: (.*)")

# Hadoop's wording.
_NO_FILE_SYSTEM: Final = re.compile(r'No FileSystem for scheme:? ?"?([A-Za-z0-9+.-]+)')


@contextmanager
def unwrapped_errors() -> Iterator[None]:
    """Raise the `QueueError` of a task instead of Spark's error about it. Other errors are not changed."""
    try:
        yield
    except SPARK_ERRORS as error:
        cause = cause_of(error)
        if cause is None:
            raise
        raise cause from error


def condition_of(error: Exception) -> tuple[str, str]:
    """Return the condition in a Spark error and its line, or no condition and the line of the innermost cause.

    If Spark cannot read a file, the line of the reason is returned instead.
    """
    found: list[tuple[str, str]] = _CONDITION.findall(str(error))
    if not found:
        causes: list[str] = _CAUSES.findall(str(error))
        return "", causes[-1] if causes else str(error).partition("\n")[0]
    (condition, line), *more = found
    return condition, more[0][1] if more and condition == "FAILED_READ_FILE" else line


def unknown_scheme(error: Exception) -> str | None:
    """Return the scheme of a path for which Spark has no file system; None if that is not the error."""
    found = _NO_FILE_SYSTEM.search(str(error))
    return None if found is None else found[1]


def unfit_header(error: Exception) -> str | None:
    """Return the header of a CSV file that does not fit the other files; None if that is not the error."""
    found = _UNFIT_HEADER.search(str(error))
    return None if found is None else found[1]


def cause_of(error: Exception) -> QueueError | None:
    """Return this library's error that a Spark error contains, or None."""
    raised = _RAISED.search(str(error))
    kind = getattr(errors, raised[1], None) if raised is not None else None
    if raised is None or not isinstance(kind, type) or not issubclass(kind, QueueError):
        return None
    if issubclass(kind, OutcomeUnknownError):
        return QueueError(raised[2])
    return kind(raised[2])
