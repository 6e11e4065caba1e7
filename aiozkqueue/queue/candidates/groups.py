"""Which messages go one after the other, and what of each group has been seen. Pure.

The items of a group share one lock, ``lock-g<hash>``. In an ordered queue all items are one group. Whoever holds the
lock takes the smallest item that is left; so what is known of a group must never have a gap:

- A listing of a lane has every item of it up to its greatest, since ZooKeeper numbers them in the order of the creates:
  what is missing below has been deleted.
- A watch tells of items in that order too. What it tells is taken only if the lane was listed while the watch was
  armed and nothing has been missed since; otherwise the lane must be listed.
- An item leaves only when it is known to be deleted: by our own commit, or by a read under the lock.

So the smallest item known, if a read under the lock finds it, is the group's head.
"""

from __future__ import annotations

import enum
from collections import deque
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import MalformedError, generation_of, item_group, item_id, item_sequence, key_hash

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from aiozkqueue.layout import ItemName, QueueConfig

#: The one group of an ordered queue. No user's group has this hash: a group's name is not empty.
ORDERED: Final = "g" + key_hash("")


def lock_id(config: QueueConfig, name: str) -> str:
    """What an item is locked by: ``g`` and the hash of its group, or its own id.

    Raises:
        MalformedError: it is not the name of an item.
    """
    if config.ordered:
        return ORDERED
    if config.grouped and (group := item_group(name)) is not None:
        return "g" + group
    return item_id(name)


def lock_ids(item: ItemName) -> tuple[str, ...]:
    """What an item may be locked by, whatever the configuration was when it was locked."""
    return (item.id, ORDERED) if item.group is None else (item.id, ORDERED, "g" + item.group)


def is_group(lock: str) -> bool:
    """Tell the lock of a group from that of an item, whose id is shorter."""
    return len(lock) == len(ORDERED) and lock[0] == "g"


class Heard(enum.Enum):
    """What an item that a watch told of is."""

    NEW = enum.auto()
    KNOWN = enum.auto()
    UNTRACKED = enum.auto()  # others may be missing before it: the lane must be listed


class GroupIndex:
    """The items of each group that may be left, oldest first, as one consumer knows them."""

    def __init__(self, config: QueueConfig) -> None:
        self.config = config
        self.blocked: bool = False
        """Whether locks are held by other rules than those in force, as `ordered` has just been switched."""
        self._groups: dict[str, dict[str, deque[str]]] = {}  # by group and lane, places
        self._in_lane: dict[str, set[str]] = {}
        self._tracked: set[str] = set()  # lanes of which nothing has been missed
        self._watching = False
        self._listing: str | None = None
        self._meanwhile: list[str] = []

    def lock_id(self, name: str) -> str:
        """What an item is locked by. Raises: MalformedError."""
        return lock_id(self.config, name)

    def _blocked_by(self, locked: Collection[str]) -> bool:
        if self.config.ordered:
            return any(lock != ORDERED for lock in locked)
        return self.config.ordered is not None and ORDERED in locked

    # -- what is there

    def head(self, group: str) -> str | None:
        """The place of the oldest item that may be left."""
        return next(self._places(group), None)

    def candidates(self, group: str, limit: int) -> list[str]:
        """The places of the oldest items that may be left."""
        return list(islice(self._places(group), limit))

    def heads(self, places: Iterable[str]) -> list[str]:
        """Return what to claim for these: each item that is in no group, and of each group once the oldest item."""
        chosen: dict[str, None] = {}
        for place in places:
            lock = self.lock_id(place.rpartition("/")[2])
            head = self.head(lock) if is_group(lock) else place
            if head is not None:
                chosen[head] = None
        return list(chosen)

    def _places(self, group: str) -> Iterator[str]:
        lanes = self._groups.get(group, {})
        if len(lanes) > 1:  # a lane's next generation was put to after it
            return chain.from_iterable(lanes[lane] for lane in sorted(lanes, key=generation_of))
        return chain.from_iterable(lanes.values())

    # -- what is learnt

    def watch(self, *, armed: bool) -> None:
        """Watches have been armed, or taken off: what came between is known only after a listing."""
        self._watching = armed
        self._tracked.clear()

    def missed(self) -> None:
        """Watches may have missed something."""
        self._tracked.clear()

    def begin_listing(self, lane: str) -> None:
        """A lane is about to be listed."""
        self._listing = lane
        self._meanwhile = []
        if self._watching:
            self._tracked.add(lane)

    def digest(self, lane: str, names: list[str], locked: Collection[str], *, whole: bool) -> list[str]:
        """Take a listing, oldest first, and what is locked; return the names to try.

        These are the names in no group, and the oldest of each group. ``whole``: none were left out of the listing.
        The lanes of older generations have been listed before.
        """
        self._forget(lane)
        offered = self._collect(lane, names)
        self._listing = None
        if not whole:
            self._tracked.discard(lane)
        meanwhile, self._meanwhile = self._meanwhile, []
        for place in meanwhile:
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
        """Take an item of a group that a watch told of."""
        lane, _, name = place.rpartition("/")
        if lane == self._listing:
            self._meanwhile.append(place)
        group = self.lock_id(name)
        known = self._groups.get(group, {}).get(lane)
        if known is not None and item_sequence(name) <= item_sequence(known[-1].rpartition("/")[2]):
            return Heard.KNOWN
        if lane not in self._tracked:
            return Heard.UNTRACKED
        if lane != self._listing:  # else it is taken with the listing
            self._in_lane.setdefault(lane, set()).add(group)
            self._groups.setdefault(group, {}).setdefault(lane, deque()).append(place)
        return Heard.NEW

    def deleted(self, place: str) -> None:
        """An item is known to be gone."""
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
