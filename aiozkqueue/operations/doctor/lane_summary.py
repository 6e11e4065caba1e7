"""Collectors of listings for the doctor, which keep only the data that it needs of a deep queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.layout import BundleName, ItemName
from aiozkqueue.queue.candidates.groups import lock_ids
from aiozkqueue.runtime.strings import Names, Strings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class FolderNames:
    """A collector of names: all, or up to ``most``; and of the ids in all of them, if ``parse`` returns any."""

    def __init__(self, most: int | None = None, parse: Callable[[str], str | None] | None = None) -> None:
        self._most = most
        self._parse = parse
        self.count: int = 0
        """The number of children of the folder."""
        self.size: int = 0
        """The size of the listing, bytes."""
        self.names: Names = Names()
        self.ids: Strings = Strings()

    def take(self, names: list[str]) -> None:
        """Add these names."""
        self.count += len(names)
        self.size += _size(names)
        self.names.extend(names if self._most is None else names[: max(0, self._most - len(self.names))])
        if self._parse is not None:
            self.ids.update(parsed for parsed in map(self._parse, names) if parsed is not None)


class LaneFacts:
    """A collector of the figures of a lane, and a sample of names.

    It removes from ``locks`` those that may lock an item of the lane, and from ``ids`` those of its items. ``ended`` is
    the number of ended messages of each bundle, and ``now`` the time, ms.
    """

    def __init__(self, locks: Strings, ids: Strings, sample: int, ended: Mapping[str, int], now: int) -> None:
        self._locks = locks
        self._ids = ids
        self._most = sample
        self._ended = ended
        self._now = now
        self.count: int = 0
        """The number of children of the lane."""
        self.size: int = 0
        """The size of the listing, bytes."""
        self.items: int = 0
        """The number of messages that are left in its items and bundles."""
        self.scheduled: int = 0
        """The number of messages whose due time has not come."""
        self.sample: list[str] = []
        """Some of the names."""
        self.foreign: Names = Names()
        """The names that are not item names."""

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
            self.scheduled += item.due is not None and item.due > self._now
            self._ids.discard(item.id)
            if self._locks:
                for lock in lock_ids(item):
                    self._locks.discard(lock)

    def _take_other(self, name: str) -> None:
        """Add the name of a child that is not an item."""
        bundle = BundleName.parse(name)
        if bundle is None:
            self.foreign.append(name)
            return
        self.items += bundle.size - self._ended.get(bundle.id, 0)
        self._locks.discard(bundle.id)
        self._ids.discard(bundle.id)


def _size(names: list[str]) -> int:
    """Return the size of these names in a listing, bytes."""
    return sum(len(name.encode()) + 4 for name in names)
