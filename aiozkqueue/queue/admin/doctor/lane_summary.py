"""Collectors of listings for the doctor, which keep what it needs of a deep queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.layout import BundleName, ItemName
from aiozkqueue.queue.candidates.groups import lock_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


class FolderNames:
    """A collector of names: all, or up to ``most``; and of the ids in all of them, if ``parse`` returns any."""

    def __init__(self, most: int | None = None, parse: Callable[[str], str | None] | None = None) -> None:
        self._most = most
        self._parse = parse
        self.count: int = 0
        """The number of children of the folder."""
        self.size: int = 0
        """The size of the listing, bytes."""
        self.names: list[str] = []
        self.ids: set[str] = set()

    def take(self, names: list[str]) -> None:
        """Add these names."""
        self.count += len(names)
        self.size += _size(names)
        self.names += names if self._most is None else names[: max(0, self._most - len(self.names))]
        if self._parse is not None:
            self.ids.update(one for one in map(self._parse, names) if one is not None)


class LaneFacts:
    """A collector of the figures of a lane, a sample of names, and the given locks and ids that have items."""

    def __init__(self, locks: Collection[str], ids: Collection[str], sample: int) -> None:
        self._locks = locks
        self._ids = ids
        self._most = sample
        self.count: int = 0
        """The number of children of the lane."""
        self.size: int = 0
        """The size of the listing, bytes."""
        self.items: int = 0
        """The number of messages in its items and bundles."""
        self.sample: list[str] = []
        """Some of the names."""
        self.foreign: list[str] = []
        """The names that are not item names."""
        self.locked: set[str] = set()
        """The given locks that may lock an item of the lane."""
        self.met: set[str] = set()
        """The given ids that belong to items of the lane."""

    def take(self, names: list[str]) -> None:
        """Add these names of children to the summary."""
        self.count += len(names)
        self.size += _size(names)
        self.sample += names[: max(0, self._most - len(self.sample))]
        for name in names:
            item = ItemName.parse(name)
            if item is None:
                self._take_other(name)
                continue
            self.items += 1
            if item.id in self._ids:
                self.met.add(item.id)
            if self._locks:
                self.locked.update(lock for lock in lock_ids(item) if lock in self._locks)

    def _take_other(self, name: str) -> None:
        """Add the name of a child that is not an item."""
        bundle = BundleName.parse(name)
        if bundle is None:
            self.foreign.append(name)
            return
        self.items += bundle.size
        self.locked.update({bundle.id}.intersection(self._locks))
        self.met.update({bundle.id}.intersection(self._ids))


def _size(names: list[str]) -> int:
    """Return the size of these names in a listing, bytes."""
    return sum(len(name.encode()) + 4 for name in names)
