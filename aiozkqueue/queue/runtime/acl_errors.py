"""Translation of ACL refusals into an `AccessDeniedError` that names the queue."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from aiozkqueue.errors import AccessDeniedError
from aiozkqueue.zookeeper import NoAuthError

if TYPE_CHECKING:
    from collections.abc import Iterator


def access_denied(queue: str, error: NoAuthError) -> AccessDeniedError:
    """Return the error for an access that an ACL refused."""
    return AccessDeniedError(f"queue {queue!r}: {error}; connect with `auth=` of a user whom the ACL allows")


@contextmanager
def translate_denials(queue: str) -> Iterator[None]:
    """Translate an ACL refusal inside the block into an error that names the queue. Raises: AccessDeniedError."""
    try:
        yield
    except NoAuthError as error:
        raise access_denied(queue, error) from error
