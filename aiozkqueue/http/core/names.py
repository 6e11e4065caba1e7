"""The names in ZooKeeper of the HTTP service's queues.

A queue under ``/queue/1`` has the same name in ZooKeeper, so that Python programs and HTTP clients can share it. Queues
under ``/dedupq/1`` are separate queues that collapse equal messages. Their names begin with ``DEDUP:``, which is not
possible over HTTP, where names have no capital letters. A name that begins with a dot gets the prefix ``QUEUE:``. A
name that is too long with its prefix is replaced by ``SHA256:`` and its SHA-256.
"""

from __future__ import annotations

import re
from enum import StrEnum
from hashlib import sha256
from typing import Final

_NAME: Final = re.compile(r"[a-z0-9.:@_-]{1,255}")
_LONGEST: Final = 255
_DEDUP: Final = "DEDUP:"
_PLAIN: Final = "QUEUE:"
PREFIXES: Final = (_DEDUP, _PLAIN)
_HASHED: Final = "SHA256:"


class Kind(StrEnum):
    """The two services, by the first segment of their paths."""

    QUEUE = "queue"
    DEDUPQ = "dedupq"


def is_name(name: str) -> bool:
    """Whether the name is valid over HTTP."""
    if not _NAME.fullmatch(name) or name in {".", ".."}:
        return False
    return not name.startswith("_") or name.startswith("__")


def native_name(kind: Kind, name: str) -> str:
    """Return the queue's name in ZooKeeper."""
    native = f"{_DEDUP}{name}" if kind is Kind.DEDUPQ else f"{_PLAIN}{name}" if name.startswith(".") else name
    if len(native) <= _LONGEST:
        return native
    return f"{_DEDUP if kind is Kind.DEDUPQ else _PLAIN}{_HASHED}{sha256(name.encode()).hexdigest()}"


def http_name(native: str) -> tuple[Kind, str] | None:
    """Return the service and name of a queue over HTTP; None if it has none."""
    if native.startswith(_DEDUP):
        kind, name = Kind.DEDUPQ, native.removeprefix(_DEDUP)
    else:
        kind, name = Kind.QUEUE, native.removeprefix(_PLAIN)
    return (kind, name) if is_name(name) and native_name(kind, name) == native else None
