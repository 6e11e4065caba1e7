"""The paths of another program's queue, and of our own data about it."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import QueuePaths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .dialect import Dialect

#: The folder below the root with our data about such queues. Names of queues do not begin with a dot.
FOREIGN: Final = ".foreign"

_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]+")
_READABLE: Final = 40
_HASH_DIGITS: Final = 16


class ForeignPaths(QueuePaths):
    """Items and locks have the paths of the other program.

    Configuration, attempts, dead letters, history and consumers are ours, below ``<root>/.foreign``. So are the locks
    if the other program has no locks.
    """

    __slots__ = ("_dialect", "_items")

    def __init__(self, root: str, dialect: Dialect) -> None:
        readable = _UNFIT.sub(".", dialect.path).strip(".")[-_READABLE:].strip(".")
        name = f"{readable or 'queue'}-{sha256(dialect.path.encode()).hexdigest()[:_HASH_DIGITS]}"
        super().__init__(f"{root}/{FOREIGN}", name, items=dialect.items, locks=dialect.locks)
        self._dialect = dialect
        self._items = len(dialect.items)

    def at(self, place: str) -> str:
        """Return the path of an item ``items/<name>``, or of one of this library's znodes."""
        return f"{self.items}{place[5:]}" if place.startswith("items") else f"{self.base}/{place}"

    def place_of(self, path: str) -> str:
        """Return the place of a path; empty if it is neither an item nor the parent of the items."""
        if not path.startswith(self.items):
            return path[len(self.base) + 1 :]
        rest = path[self._items :]
        return f"items{rest}" if rest.count("/") <= 1 else ""

    def folders_among(self, path: str) -> Sequence[str]:
        """See `QueuePaths`: the locks may be below the items, or the items below the locks."""
        if path not in {self.items, self.locks}:
            return ()
        other = self.locks if path == self.items else self.items
        if not other.startswith(f"{path}/"):
            return ()
        end = other.find("/", len(path) + 1)
        return (other if end < 0 else other[:end],)

    def lock(self, id: str) -> str:
        """Return the path of a lock, which has the name of its item."""
        return f"{self.locks}/{id}"

    def lock_of(self, name: str) -> str | None:
        """Return the item that a child of the locks' parent locks; None if it is not a lock."""
        return name if self._dialect.is_item(name) else None
