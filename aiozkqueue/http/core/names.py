"""What a queue of the HTTP service is called in ZooKeeper.

A name under ``/queue/1`` is the queue's own, so that programs on the Python API and on HTTP share it. Those under
``/dedupq/1`` are queues of their own, which collapse equal messages: they begin with ``DEDUP:``, which no name on HTTP
does, since those have no capitals. A name with a dot first begins with ``QUEUE:``. A name that is too long with its
prefix is replaced by its SHA-256, behind ``SHA256:``, which no name on HTTP contains either.
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
_HASHED: Final = "SHA256:"


class Kind(StrEnum):
    """The two services, by the first part of their paths."""

    QUEUE = "queue"
    DEDUPQ = "dedupq"


def is_name(name: str) -> bool:
    """Whether a queue can be called so over HTTP."""
    if not _NAME.fullmatch(name) or name in {".", ".."}:
        return False
    return not name.startswith("_") or name.startswith("__")


def native_name(kind: Kind, name: str) -> str:
    """The queue's name in ZooKeeper."""
    native = f"{_DEDUP}{name}" if kind is Kind.DEDUPQ else f"{_PLAIN}{name}" if name.startswith(".") else name
    if len(native) <= _LONGEST:
        return native
    return f"{_DEDUP if kind is Kind.DEDUPQ else _PLAIN}{_HASHED}{sha256(name.encode()).hexdigest()}"


def http_name(native: str) -> tuple[Kind, str] | None:
    """The service and name that a queue in ZooKeeper has over HTTP; None when it has none."""
    if native.startswith(_DEDUP):
        kind, name = Kind.DEDUPQ, native.removeprefix(_DEDUP)
    else:
        kind, name = Kind.QUEUE, native.removeprefix(_PLAIN)
    return (kind, name) if is_name(name) and native_name(kind, name) == native else None
