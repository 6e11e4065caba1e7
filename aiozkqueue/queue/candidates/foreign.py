"""Decides which items of another program may exist when their locks come and go. Pure.

The end of a lock says nothing about its item. Another program locks and unlocks deleted items while it works through an
old listing, and so does each of our consumers that has found no item under a lock. If the end of a lock made its item a
candidate, the item would be locked, found missing and unlocked, and the end of that lock would make it a candidate
again. So the end of a lock only raises a doubt, and a read of the item settles it. A read creates no lock, so it raises
no further doubt.

Items known to be deleted raise no doubt. That only saves reads, so it does not matter how many of them are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Items known to be deleted that are kept.
GONE_KEPT: Final = 10_000
#: Items that are read one by one. For more than these, a listing is cheaper.
DOUBTS_KEPT: Final = 500


class Doubts:
    """The items of one queue that may exist although their locks have ended, and those known to be deleted."""

    def __init__(self) -> None:
        self._open: dict[str, None] = {}
        self._gone: dict[str, None] = {}

    def __bool__(self) -> bool:
        """Whether any item must be read."""
        return bool(self._open)

    def clear(self) -> None:
        """Forget everything, before a listing or after events may have been missed.

        A queue that is deleted and created again numbers its items from 0, so names repeat.
        """
        self._open.clear()
        self._gone.clear()

    def unlocked(self, item: str) -> bool:
        """Record that a lock has ended; return whether its item must be read."""
        if item in self._gone:
            return False
        if not self.too_many:
            self._open[item] = None
        return True

    @property
    def too_many(self) -> bool:
        """Whether a listing is needed, because there may be more items than are kept."""
        return len(self._open) >= DOUBTS_KEPT

    def found(self, item: str) -> None:
        """Record that an item exists."""
        self._gone.pop(item, None)

    def gone(self, item: str) -> None:
        """Record that an item no longer exists."""
        self._open.pop(item, None)
        self._gone[item] = None
        if len(self._gone) > GONE_KEPT:
            del self._gone[next(iter(self._gone))]

    def without_gone(self, items: Iterable[str]) -> list[str]:
        """Return the items that are not known to be deleted."""
        gone = self._gone
        return [item for item in items if item not in gone]

    def take(self) -> list[str]:
        """Remove and return the items that must be read."""
        items = list(self._open)
        self._open.clear()
        return items
