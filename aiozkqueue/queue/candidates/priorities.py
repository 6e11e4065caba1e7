"""The priorities of a queue as one consumer sees them: of each, its candidates, and whether there may be more.

While a less urgent level is worked on, the idle ones above it are watched, so that what comes there is taken next and
nothing that waits is listed for it. A watch costs whoever writes: one that has too much to tell is taken off, and its
level is looked at again when its candidates have run out.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import priority_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aiozkqueue.layout import QueuePaths, Tier
    from aiozkqueue.zookeeper import Watch, WatchEvent, ZooKeeper

    from .backlog import Backlog
    from .groups import GroupIndex
    from .partition import Partition

#: A watched level under which there is work is looked at again after so many seconds: a lock that its holder's death
#: has ended is told by no watch on items. Longer when a look takes long.
RECHECK: Final = 0.5
RECHECK_PER_LOOK: Final = 50
#: A level of which a watch tells more than so many changes in so many seconds is not idle.
BUSY_EVENTS: Final = 64
BUSY_SECONDS: Final = 0.2


class PriorityLevel:
    """One priority."""

    __slots__ = ("_began", "_told", "_watches", "backlog", "last_shard", "look_again", "must_list", "seen_all", "tier")

    def __init__(self, tier: Tier, backlog: Backlog) -> None:
        self.tier: Tier = tier
        self.backlog: Backlog = backlog
        self.must_list: bool = True
        """Whether its lanes must be listed before anything else is claimed of it."""
        self.seen_all: bool = False
        """Whether the last look went through all of its lanes."""
        self.last_shard: int = -1
        self.look_again: float = 0.0
        """When it must be looked at even though a watch has told of nothing."""
        self._watches: list[Watch] = []
        self._told = 0
        self._began = 0.0

    @property
    def lanes(self) -> list[str]:
        """All its lanes, relative to the queue."""
        return [lane for shard in self.tier.shard_lanes for lane in shard]

    @property
    def watched(self) -> bool:
        """Whether what comes to it is told."""
        return bool(self._watches)

    def seen_empty(self, now: float, took: float) -> None:
        """Take note that there was nothing in any of its lanes when they were looked at; what is told since, stays."""
        self.backlog.forget_listed()
        self.seen_all = True
        self.looked_at(now, took)

    def looked_at(self, now: float, took: float) -> None:
        """Take note of when it was looked at, and for how long."""
        self.backlog.looked(now - took)
        self.look_again = now + max(RECHECK, RECHECK_PER_LOOK * took)

    async def watch(self, zookeeper: ZooKeeper, paths: QueuePaths, callback: Callable[[WatchEvent], None]) -> None:
        """Listen to its lanes; what happened before must be looked for after this."""
        watches = await asyncio.gather(
            *(zookeeper.watch(paths.at(lane), callback, recursive=True) for lane in self.lanes),
            return_exceptions=True,
        )
        self._watches += [watch for watch in watches if not isinstance(watch, BaseException)]
        for failure in watches:
            if isinstance(failure, BaseException):
                self.unwatch()
                raise failure

    def unwatch(self) -> None:
        """Stop listening."""
        for watch in self._watches:
            watch.cancel()
        self._watches = []

    def count_event(self, now: float) -> None:
        """Take note that the watch has told of something: too much of it, and it is taken off."""
        if now - self._began > BUSY_SECONDS:
            self._began, self._told = now, 0
        self._told += 1
        if self._told > BUSY_EVENTS and self._watches:
            self.unwatch()
            self.must_list = True


class PriorityIndex:
    """All priorities of a queue, the most urgent first. There is always the plain one, 0."""

    def __init__(self, tiers: tuple[Tier, ...], backlog: Callable[[], Backlog]) -> None:
        self._backlog = backlog
        self._index: GroupIndex | None = None
        self.tiers: tuple[Tier, ...] = tiers
        """What the configuration says of them."""
        self._priority_index = [PriorityLevel(tier, backlog()) for tier in tiers]
        self._by_priority = {level.tier.priority: level for level in self._priority_index}

    def __iter__(self) -> Iterator[PriorityLevel]:
        return iter(self._priority_index)

    @property
    def plain(self) -> PriorityLevel | None:
        """The only level of a queue without priorities."""
        return self._priority_index[0] if len(self._priority_index) == 1 else None

    @property
    def share(self) -> Partition:
        """This consumer's place among the live ones."""
        return self._by_priority[0].backlog.share

    def adopt(self, tiers: tuple[Tier, ...]) -> None:
        """Follow a configuration that has changed; what is known of a level stays known."""
        self.tiers = tiers
        share = self.share
        priority_index: list[PriorityLevel] = []
        for tier in tiers:
            level = self._by_priority.pop(tier.priority, None) or PriorityLevel(tier, self._backlog())
            if level.tier != tier:
                level.unwatch()
                level.tier, level.must_list, level.seen_all = tier, True, False
            level.backlog.reindex(self._index)
            level.backlog.reshare(share)
            priority_index.append(level)
        for level in self._by_priority.values():
            level.unwatch()
        self._priority_index, self._by_priority = (
            priority_index,
            {level.tier.priority: level for level in priority_index},
        )

    def of(self, place: str) -> PriorityLevel:
        """Return the level of an item's place; the plain one when its priority is not known here (yet)."""
        if len(self._priority_index) == 1:
            return self._priority_index[0]
        return self._by_priority.get(priority_at(place)) or self._by_priority[0]

    def clear(self) -> None:
        """Forget all candidates."""
        for level in self._priority_index:
            level.backlog.clear()
            level.must_list = True

    def must_list(self) -> None:
        """List everything again before anything else is claimed."""
        for level in self._priority_index:
            level.must_list = True

    def reshare(self, share: Partition) -> None:
        """Take note of who else is there."""
        for level in self._priority_index:
            level.backlog.reshare(share)

    def regroup(self, index: GroupIndex | None) -> None:
        """Forget all candidates; from now on they are found by what is known of the queue's groups, if it has any."""
        self._index = index
        for level in self._priority_index:
            level.backlog.regroup(index)
            level.must_list = True

    def lock(self, lock: str) -> None:
        """Somebody else holds a lock."""
        for level in self._priority_index:
            level.backlog.lock(lock)

    def unlock(self, lock: str) -> None:
        """A lock is gone."""
        for level in self._priority_index:
            level.backlog.unlock(lock)

    def is_locked(self, lock: str) -> bool:
        """Whether somebody else is known to hold a lock."""
        return any(level.backlog.is_locked(lock) for level in self._priority_index)

    def put_back(self, places: Sequence[str]) -> None:
        """Take candidates back, to be tried next."""
        for level, own in self._split(places):
            level.backlog.put_back(own)

    def offer(self, places: Sequence[str], now: float) -> None:
        """Take candidates whose time has come, to be tried before what is listed."""
        for level, own in self._split(places):
            level.backlog.offer(own, now)

    def put_last(self, places: Sequence[str]) -> None:
        """Take candidates back that others work on."""
        for level, own in self._split(places):
            level.backlog.put_last(own)

    def next_steal(self) -> float | None:
        """When the first of what others leave lying may be taken; None when nothing is."""
        return min(
            (due for level in self._priority_index if (due := level.backlog.next_steal()) is not None), default=None
        )

    @property
    def next_due(self) -> int | None:
        """When the first of what is known may be taken, ms in ZooKeeper's time; None: now, or never."""
        return min((due for level in self._priority_index if (due := level.backlog.next_due) is not None), default=None)

    def unwatch(self) -> None:
        """Stop listening."""
        for level in self._priority_index:
            level.unwatch()

    def _split(self, places: Sequence[str]) -> list[tuple[PriorityLevel, Sequence[str]]]:
        if len(self._priority_index) == 1:
            return [(self._priority_index[0], places)]
        by_level: dict[int, tuple[PriorityLevel, list[str]]] = {}
        for place in places:
            level = self.of(place)
            by_level.setdefault(level.tier.priority, (level, []))[1].append(place)
        return list(by_level.values())
