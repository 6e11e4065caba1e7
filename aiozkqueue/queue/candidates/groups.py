"""Tracks the items of each message group, which are delivered in order. Pure.

The items of a group share one lock, ``lock-g<hash>``. In an ordered queue all items are one group. The lock's holder
takes the smallest remaining item, so the known items of a group must have no gap:

- A listing of a lane contains every item up to its greatest, since ZooKeeper numbers items in order of creation: an
  item missing below has been deleted.
- Watches report items in that order too. A reported item is used only if the lane was listed while the watch was armed,
  and no event was missed since; otherwise the lane must be listed.
- An item is removed only when it is known to be deleted: by our own commit, or by a read under the lock.

So the smallest known item is the group's head, if a read under the lock finds it.
"""

from __future__ import annotations

import enum
from itertools import islice
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import (
    ItemRef,
    MalformedError,
    candidate_id,
    generation_of,
    item_group,
    item_sequence,
    key_hash,
    name_at,
)

from .chains import Chains

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from aiozkqueue.layout import ItemName, StoredConfig

#: The one group of an ordered queue. No user's group has this hash, because group names are not empty.
ORDERED: Final = "g" + key_hash("")


def lock_id(config: StoredConfig, name: str) -> str:
    """Return the lock id of an item or a bundle: ``g`` and the hash of its group, or its own id.

    Raises:
        MalformedError: ``name`` is not the name of either.
    """
    if config.ordered:
        candidate_id(name)  # raises for another program's znode, which is not a message of the queue
        return ORDERED
    group = item_group(name) if config.grouped else None
    return candidate_id(name) if group is None else "g" + group


def lock_ids(item: ItemName) -> tuple[str, ...]:
    """Return the locks that an item may have, under any configuration."""
    return (item.id, ORDERED) if item.group is None else (item.id, ORDERED, "g" + item.group)


def is_group(lock: str) -> bool:
    """Whether a lock is a group's; an item's id is shorter."""
    return len(lock) == len(ORDERED) and lock[0] == "g"


class Reported(enum.Enum):
    """The classification of a reported item."""

    NEW = enum.auto()
    KNOWN = enum.auto()
    UNTRACKED = enum.auto()  # earlier items may be unknown: the lane must be listed


class GroupIndex:
    """The remaining items of each group that one consumer knows."""

    def __init__(self, config: StoredConfig) -> None:
        self.config = config
        self.blocked: bool = False
        """Whether locks of other rules are held, because `ordered` has just been changed."""
        self.ended: int = 0
        """Locks of this session that have ended."""
        self.replaced: Chains | None = None
        """The items that the last listing has replaced, which may be released in parts."""
        self._lanes: dict[str, Chains] = {}
        self._tracked: set[str] = set()  # lanes without missed events
        self._watching = False
        self._listing: str | None = None
        self._found = Chains()  # of the listing
        self._deleted: set[str] = set()  # names that were deleted while the listing is running
        self._reported: list[str] = []

    def lock_id(self, name: str) -> str:
        """Return the lock id of an item or a bundle. Raises: MalformedError."""
        return lock_id(self.config, name)

    def _blocked_by(self, locked: Collection[str]) -> bool:
        if self.config.ordered:
            return any(lock != ORDERED for lock in locked)
        return self.config.ordered is not None and ORDERED in locked

    # -- queries

    def head(self, group: str) -> str | None:
        """Return the place of the oldest item that may remain."""
        return next(self._places(group), None)

    def candidates(self, group: str, limit: int) -> list[str]:
        """Return the places of the oldest items that may remain."""
        return list(islice(self._places(group), limit))

    def heads(self, places: Iterable[str]) -> list[str]:
        """Return the places to claim for these: items without a group, and the oldest item of each group once.

        While the index is `blocked`, there are none. The listing after that finds them again.
        """
        if self.blocked:
            return []
        chosen: dict[str, None] = {}
        for place in places:
            lock = self.lock_id(name_at(place))
            head = self.head(lock) if is_group(lock) else place
            if head is not None:
                chosen[head] = None
        return list(chosen)

    def _places(self, group: str) -> Iterator[str]:
        lanes = [lane for lane, groups in self._lanes.items() if group in groups]
        if len(lanes) > 1:  # a lane's next generation holds later items
            lanes.sort(key=generation_of)
        return (ItemRef(lane, name).path for lane in lanes for name in self._lanes[lane].names(group))

    # -- updates

    def watch(self, *, armed: bool) -> None:
        """Record that watches were armed or removed: events in between are known only after a listing."""
        self._watching = armed
        self._tracked.clear()

    def missed(self) -> None:
        """Record that watches may have missed events."""
        self._tracked.clear()

    def begin_listing(self, lane: str) -> None:
        """Prepare for the listing of a lane. The items known before stay in use until `end_listing`."""
        self._listing = lane
        self._found = Chains()
        self._deleted.clear()
        self._reported = []
        if self._watching:
            self._tracked.add(lane)

    def collect(self, names: Iterable[str]) -> list[str]:
        """Add the next names of the listing, oldest first; return those to try.

        These are the names without a group, and the first of each group. A listing is added in parts, and anything may
        be reported in between.
        """
        offered: list[str] = []
        for name in names:
            try:
                group = self.lock_id(name)
            except MalformedError:
                continue  # another program's znode
            if not is_group(group) or (name not in self._deleted and self._found.append(group, name)):
                offered.append(name)
        return offered

    def end_listing(self, lane: str, locked: Collection[str], *, whole: bool) -> list[str]:
        """Use the collected items from now on; return the names to try of those reported in the meantime.

        ``whole``: the listing is complete. While other rules' locks exist, the index is `blocked`, and nothing may be
        tried.
        """
        self.replaced = self._lanes.get(lane)
        self._lanes[lane], self._found, self._listing = self._found, Chains(), None
        if not whole:
            self._tracked.discard(lane)
        offered: list[str] = []
        reported, self._reported = self._reported, []
        for place in reported:
            name = name_at(place)
            if name in self._deleted:
                continue
            if self.add_reported(place) is Reported.NEW and self.head(self.lock_id(name)) == place:
                offered.append(name)
        self._deleted.clear()
        if not self._lanes[lane]:
            del self._lanes[lane]
        self.blocked = self._blocked_by(locked)
        return offered

    def add_reported(self, place: str) -> Reported:
        """Add an item of a group that a watch reported."""
        lane, name = ItemRef.parse(place)
        if lane == self._listing:
            self._reported.append(place)
        group, groups = self.lock_id(name), self._lanes.get(lane)
        last = None if groups is None else groups.last(group)
        if last is not None and item_sequence(name) <= item_sequence(last):
            return Reported.KNOWN
        if lane not in self._tracked:
            return Reported.UNTRACKED
        if lane != self._listing:  # otherwise it is added with the listing
            self._lanes.setdefault(lane, Chains()).append(group, name)
        return Reported.NEW

    def deleted(self, place: str) -> None:
        """Record that an item no longer exists."""
        lane, name = ItemRef.parse(place)
        group, groups = self.lock_id(name), self._lanes.get(lane)
        if groups is not None:
            groups.remove(group, name)
            if not groups:
                del self._lanes[lane]
        if lane == self._listing:
            self._deleted.add(name)
            self._found.remove(group, name)
