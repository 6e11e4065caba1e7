"""What is known of another program's items when their locks come and go. Pure.

The end of a lock says nothing about its item. Another program locks and unlocks items that are gone while it works
through an old listing, and so does every consumer of ours that has found nothing under a lock. An item that such an end
made a candidate would be locked, found gone and unlocked, and the end of that lock would make it a candidate again. So
the end of a lock only raises a doubt, and a read of the item settles it. A read creates no lock, so that it raises no
other doubt.

Items that are known to be gone raise none. That only saves reads: it does not matter how many of them are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Items known to be gone.
GONE_KEPT: Final = 10_000
#: Items to be looked at one by one. Of more than these, a listing tells for less.
DOUBTS_KEPT: Final = 500


class Doubts:
    """Which items of one queue may be there although their locks have ended, and which are known to be gone."""

    def __init__(self) -> None:
        self._open: dict[str, None] = {}
        self._gone: dict[str, None] = {}

    def __bool__(self) -> bool:
        """Whether any item is to be looked at."""
        return bool(self._open)

    def clear(self) -> None:
        """Forget everything: a listing is about to tell, or what was told may have been missed.

        A queue that is deleted and made again numbers its items from 0, so that a name comes twice.
        """
        self._open.clear()
        self._gone.clear()

    def unlocked(self, item: str) -> bool:
        """Take note that a lock has ended; return whether its item is to be looked at."""
        if item in self._gone:
            return False
        if not self.too_many:
            self._open[item] = None
        return True

    @property
    def too_many(self) -> bool:
        """Whether a listing is to tell instead: there may be more than are kept."""
        return len(self._open) >= DOUBTS_KEPT

    def found(self, item: str) -> None:
        """Take note that an item is there."""
        self._gone.pop(item, None)

    def gone(self, item: str) -> None:
        """Take note that an item is gone."""
        self._open.pop(item, None)
        self._gone[item] = None
        if len(self._gone) > GONE_KEPT:
            del self._gone[next(iter(self._gone))]

    def without_gone(self, items: Iterable[str]) -> list[str]:
        """Leave out what is known to be gone."""
        gone = self._gone
        return [item for item in items if item not in gone]

    def take(self) -> list[str]:
        """Take out the items that are to be looked at."""
        items = list(self._open)
        self._open.clear()
        return items
