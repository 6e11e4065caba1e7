"""What the doctor keeps of a lane: figures, a sample, and which of some locks and messages it has items of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.layout import ItemName
from aiozkqueue.queue.candidates.groups import lock_ids

if TYPE_CHECKING:
    from collections.abc import Collection


class LaneFacts:
    """A collector for `children_into`: it holds no more of a deep lane than what was asked for."""

    def __init__(self, locks: Collection[str], ids: Collection[str], sample: int) -> None:
        self._locks = locks
        self._ids = ids
        self._most = sample
        self.count: int = 0
        """How many children the lane has."""
        self.size: int = 0
        """How long the listing is, bytes."""
        self.items: int = 0
        """How many of the children are items."""
        self.sample: list[str] = []
        """Some of the names."""
        self.foreign: list[str] = []
        """The names that are no item's."""
        self.locked: set[str] = set()
        """Which of the locks asked for may lock an item here."""
        self.met: set[str] = set()
        """Which of the ids asked for are those of items here."""

    def take(self, names: list[str]) -> None:
        """Look at these."""
        self.count += len(names)
        self.size += sum(len(name.encode()) + 4 for name in names)
        self.sample += names[: max(0, self._most - len(self.sample))]
        for name in names:
            item = ItemName.parse(name)
            if item is None:
                self.foreign.append(name)
                continue
            self.items += 1
            if item.id in self._ids:
                self.met.add(item.id)
            if self._locks:
                self.locked.update(lock for lock in lock_ids(item) if lock in self._locks)
