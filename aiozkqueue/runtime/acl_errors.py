"""Translation of ACL refusals into an `AccessDeniedError` that names the queue."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import AccessDeniedError, PartlyDeniedError
from aiozkqueue.zookeeper import (
    Create,
    Delete,
    MultiError,
    NoAuthError,
    QuotaExceededError,
    SetData,
    parent_of,
    refuses_credentials,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aiozkqueue.errors import QueueError
    from aiozkqueue.zookeeper import Operation


#: Maximum number of messages that an error or a log record names.
_NAMED: Final = 10


def access_denied(queue: str, error: NoAuthError) -> AccessDeniedError:
    """Return the error for an access that an ACL or a quota refused, which is its cause."""
    denied = AccessDeniedError(f"queue {queue!r}: {error}; {error.advice}")
    denied.__cause__ = error
    return denied


def required_right(operation: Operation) -> str:
    """Return the right of an ACL that an operation needs, with the znode that must grant it."""
    path = operation.path
    if isinstance(operation, Create):
        return f"create children of {parent_of(path)}"
    if isinstance(operation, Delete):
        return f"delete children of {parent_of(path)}"
    return f"write {path}" if isinstance(operation, SetData) else f"read {path}"


def right_denied(subject: str, right: str, error: NoAuthError) -> AccessDeniedError:
    """Return the error for a refused access to ``subject``; it names the right that this user lacks."""
    if isinstance(error, QuotaExceededError):
        prefix = "" if subject == error.path else f"{subject}: "
        denied = AccessDeniedError(f"{prefix}{error}; {error.advice}")
    else:
        denied = AccessDeniedError(f"{subject}: an ACL gives this user no right to {right}; {error.advice}")
    denied.__cause__ = error
    return denied


def exceeds_quota(error: BaseException | None) -> bool:
    """Whether an enforced quota of ZooKeeper has caused an error."""
    seen = set[BaseException]()  # the error in a multi's refusal may have this refusal as its cause
    while error is not None and error not in seen:
        if isinstance(error, QuotaExceededError):
            return True
        seen.add(error)
        error = error.error if isinstance(error, MultiError) else error.__cause__
    return False


@contextmanager
def translate_denials(queue: str) -> Iterator[None]:
    """Translate an ACL refusal inside the block into an error that names the queue. Raises: AccessDeniedError."""
    try:
        yield
    except NoAuthError as error:
        raise access_denied(queue, error) from error


def name_some(message_ids: Sequence[str]) -> str:
    """Return the first ids as a list, and the number of further ones."""
    more = len(message_ids) - _NAMED
    return ", ".join(message_ids[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def partly_denied(
    queue: str, what: str, message_ids: Sequence[str], done: int, denied: QueueError
) -> PartlyDeniedError:
    """Return the error for messages that an operation had to skip; ``what`` names the operation as a participle.

    ``denied`` is the error of one of them.
    """
    reason, advice = "This user may not access the rest", "Use the credentials of a user whom the ACL allows"
    if refuses_credentials(denied):
        reason, advice = "ZooKeeper has refused the credentials for the rest", "Check the user and the password"
    elif exceeds_quota(denied):
        advice = QuotaExceededError.advice
        reason, advice = "An enforced quota of ZooKeeper refuses the rest", advice[0].upper() + advice[1:]
    return PartlyDeniedError(
        f"queue {queue!r}: {done} of {done + len(message_ids)} messages {what}. {reason}: {name_some(message_ids)}. "
        f"{advice}",
        message_ids,
        done,
    )
