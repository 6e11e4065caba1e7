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
from collections import deque
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import MalformedError, generation_of, item_group, item_id, item_sequence, key_hash

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from aiozkqueue.layout import ItemName, StoredConfig

#: The one group of an ordered queue. No user's group has this hash, because group names are not empty.
ORDERED: Final = "g" + key_hash("")


def lock_id(config: StoredConfig, name: str) -> str:
    """Return the lock id of an item: ``g`` and the hash of its group, or its own id.

    Raises:
        MalformedError: ``name`` is not the name of an item.
    """
    if config.ordered:
        return ORDERED
    if config.grouped and (group := item_group(name)) is not None:
        return "g" + group
    return item_id(name)


def lock_ids(item: ItemName) -> tuple[str, ...]:
    """Return the locks that an item may have, under any configuration."""
    return (item.id, ORDERED) if item.group is None else (item.id, ORDERED, "g" + item.group)


def is_group(lock: str) -> bool:
    """Whether a lock is a group's; an item's id is shorter."""
    return len(lock) == len(ORDERED) and lock[0] == "g"


class Heard(enum.Enum):
    """The result of a reported item."""

    NEW = enum.auto()
    KNOWN = enum.auto()
    UNTRACKED = enum.auto()  # earlier items may be unknown: the lane must be listed


class GroupIndex:
    """The remaining items of each group, oldest first, that one consumer knows."""

    def __init__(self, config: StoredConfig) -> None:
        self.config = config
        self.blocked: bool = False
        """Whether locks of other rules are held, because `ordered` has just been changed."""
        self._groups: dict[str, dict[str, deque[str]]] = {}  # by group and lane, places
        self._in_lane: dict[str, set[str]] = {}
        self._tracked: set[str] = set()  # lanes without missed events
        self._watching = False
        self._listing: str | None = None
        self._reported: list[str] = []

    def lock_id(self, name: str) -> str:
        """Return the lock id of an item. Raises: MalformedError."""
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
        """Return the places to claim for these: items without a group, and the oldest item of each group once."""
        chosen: dict[str, None] = {}
        for place in places:
            lock = self.lock_id(place.rpartition("/")[2])
            head = self.head(lock) if is_group(lock) else place
            if head is not None:
                chosen[head] = None
        return list(chosen)

    def _places(self, group: str) -> Iterator[str]:
        lanes = self._groups.get(group, {})
        if len(lanes) > 1:  # a lane's next generation holds later items
            return chain.from_iterable(lanes[lane] for lane in sorted(lanes, key=generation_of))
        return chain.from_iterable(lanes.values())

    # -- updates

    def watch(self, *, armed: bool) -> None:
        """Record that watches were armed or removed: events in between are known only after a listing."""
        self._watching = armed
        self._tracked.clear()

    def missed(self) -> None:
        """Record that watches may have missed events."""
        self._tracked.clear()

    def begin_listing(self, lane: str) -> None:
        """Prepare for the listing of a lane."""
        self._listing = lane
        self._reported = []
        if self._watching:
            self._tracked.add(lane)

    def digest(self, lane: str, names: list[str], locked: Collection[str], *, whole: bool) -> list[str]:
        """Store a listing, oldest first, and the locks; return the names to try.

        These are the names without a group, and the oldest of each group. ``whole``: the listing is complete. The lanes
        of older generations have been listed before.
        """
        self._forget(lane)
        offered = self._collect(lane, names)
        self._listing = None
        if not whole:
            self._tracked.discard(lane)
        reported, self._reported = self._reported, []
        for place in reported:
            name = place.rpartition("/")[2]
            if self.hear(place) is Heard.NEW and self.head(self.lock_id(name)) == place:
                offered.append(name)
        self.blocked = self._blocked_by(locked)
        return [] if self.blocked else offered

    def _forget(self, lane: str) -> None:
        for group in self._in_lane.pop(lane, ()):
            del self._groups[group][lane]
            if not self._groups[group]:
                del self._groups[group]

    def _collect(self, lane: str, names: list[str]) -> list[str]:
        members = self._in_lane[lane] = set[str]()
        offered: list[str] = []
        for name in names:
            try:
                group = self.lock_id(name)
            except MalformedError:
                continue  # another program's znode
            if not is_group(group):
                offered.append(name)
                continue
            place = f"{lane}/{name}"
            if group in members:
                self._groups[group][lane].append(place)
            else:
                members.add(group)
                self._groups.setdefault(group, {})[lane] = deque((place,))
                if self.head(group) == place:
                    offered.append(name)
        return offered

    def hear(self, place: str) -> Heard:
        """Add an item of a group that a watch reported."""
        lane, _, name = place.rpartition("/")
        if lane == self._listing:
            self._reported.append(place)
        group = self.lock_id(name)
        known = self._groups.get(group, {}).get(lane)
        if known is not None and item_sequence(name) <= item_sequence(known[-1].rpartition("/")[2]):
            return Heard.KNOWN
        if lane not in self._tracked:
            return Heard.UNTRACKED
        if lane != self._listing:  # otherwise it is added with the listing
            self._in_lane.setdefault(lane, set()).add(group)
            self._groups.setdefault(group, {}).setdefault(lane, deque()).append(place)
        return Heard.NEW

    def deleted(self, place: str) -> None:
        """Record that an item no longer exists."""
        lane, _, name = place.rpartition("/")
        group = self.lock_id(name)
        lanes = self._groups.get(group)
        places = None if lanes is None else lanes.get(lane)
        if lanes is None or places is None:
            return
        if places[0] == place:
            places.popleft()
        elif place in places:
            places.remove(place)
        if not places:
            del lanes[lane]
            self._in_lane[lane].discard(group)
            if not lanes:
                del self._groups[group]
