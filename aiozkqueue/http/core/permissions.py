"""Permissions: ``queue|<verb>|<name>``, each part with ``*`` for anything. Pure."""

from __future__ import annotations

import re
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, Self

from aiozkqueue.arguments import collection
from aiozkqueue.errors import InvalidOptionError

from .names import PREFIXES

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Names of Python programs' queues may have capital letters. The dashboard shows and changes these queues, too.
_PATTERN: Final = re.compile(r"[A-Za-z0-9.:@_*-]{1,255}")
_PARTS: Final = 3


class Verb(StrEnum):
    """The operations on a queue that a key may allow."""

    POST = "post"
    POLL = "poll"
    GET_STATUS = "get_status"
    PURGE = "purge"
    MANAGE = "manage"
    """Change queues, messages and dead letters on the dashboard."""


class Permissions:
    """The permissions of a key."""

    __slots__ = ("_allowed", "patterns")

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns: tuple[str, ...] = tuple(collection(patterns, "permissions", "'queue|VERB|NAME'"))
        self._allowed = tuple(_parse(pattern) for pattern in self.patterns)

    def allows(self, verb: Verb, queue: str) -> bool:
        """Whether the key allows this operation on a queue, named as over HTTP."""
        return any(fnmatchcase(verb, verbs) and fnmatchcase(queue, names) for verbs, names in self._allowed)

    @classmethod
    def none(cls) -> Self:
        """Return permissions that allow nothing."""
        return cls(())


def _parse(pattern: str) -> tuple[str, str]:
    parts = pattern.split("|")
    if (
        len(parts) > _PARTS
        or parts[0] not in {"queue", "*"}
        or not all(_PATTERN.fullmatch(part) for part in parts)
        or (len(parts) > 1 and not any(fnmatchcase(verb, parts[1]) for verb in Verb))
    ):
        verbs = ", ".join(Verb)
        msg = (
            f"{pattern!r} is not a permission: give queue|VERB|NAME, with * for anything, and one of the verbs {verbs}"
        )
        raise InvalidOptionError(msg)
    if len(parts) == _PARTS and parts[2].startswith(PREFIXES):
        msg = f"{pattern!r}: give the queue's name as over HTTP, without {parts[2].partition(':')[0]}:"
        raise InvalidOptionError(msg)
    padded = [*parts, "*", "*"]
    return padded[1], padded[2]
