"""The interface of the command for scripts: exit statuses, and the one line of an error."""

from __future__ import annotations

import enum
from typing import Final, cast

from aiozkqueue import errors
from aiozkqueue.testing import ServerUnavailableError


class Exit(enum.IntEnum):
    """Exit statuses. Those above 128 mean: ended by the signal of that number less 128, as in a shell."""

    OK = 0
    NOTHING = 1  # nothing was found, or the work itself failed
    USAGE = 2
    NO_CONNECTION = 3
    REFUSED = 4
    CONFLICT = 5
    UNKNOWN = 6
    INTERRUPTED = 130


EXPLAINED: Final = (
    "Exit status: 0 done; 1 nothing found, or the work failed; 2 wrong usage; 3 no connection; 4 access denied; "
    "5 conflict with a claim, key, limit or configuration, and nothing was changed; "
    "6 outcome unknown, so check before you try again; 130 interrupted."
)

# The first that fits counts.
_STATUS: Final[tuple[tuple[type[Exception], Exit], ...]] = (
    (errors.ConnectionLostError, Exit.NO_CONNECTION),
    (errors.AccessDeniedError, Exit.REFUSED),
    (errors.TransactionTooLargeError, Exit.USAGE),
    (errors.NotCommittedError, Exit.CONFLICT),
    (errors.ConfigConflictError, Exit.CONFLICT),
    (errors.AlreadyExistsError, Exit.CONFLICT),
    (errors.MissingExtraError, Exit.USAGE),
    (errors.OutcomeUnknownError, Exit.UNKNOWN),
    (ValueError, Exit.USAGE),
)


class CommandFailedError(Exception):
    """A command failed; the message has the reason."""


# Errors that end a command with one line on stderr. Any other error is a bug, and shows its traceback.
_EXPECTED: Final = (CommandFailedError, errors.QueueError, ServerUnavailableError, OSError)


def expected(error: Exception) -> Exception | None:
    """Return the error to report, unwrapped from exception groups; None for a defect of this program."""
    if not isinstance(error, ExceptionGroup):
        return error if isinstance(error, _EXPECTED) else None
    causes = [expected(cause) for cause in cast("ExceptionGroup[Exception]", error).exceptions]
    return None if None in causes else causes[0]


def status_of_child(code: int) -> Exit:
    """Return the exit status for that of the same command in a child process."""
    return Exit(code) if code in set(Exit) else Exit.INTERRUPTED if code < 0 else Exit.NOTHING


def status_of(error: Exception) -> Exit:
    """The exit status for an expected error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), Exit.NOTHING)
