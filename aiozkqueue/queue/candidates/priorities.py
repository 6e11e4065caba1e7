"""The priorities of a queue that one consumer knows: the candidates of each, and whether there may be more.

While a less urgent level is worked on, the idle levels above it are watched, so that a new item there is taken next
without another listing. A watch costs the producers: a watch with too many events is removed, and its level is checked
again when its candidates have run out.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import priority_at
from aiozkqueue.zookeeper import PAGE

from .partition import Partition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from aiozkqueue.layout import QueuePaths, Tier
    from aiozkqueue.zookeeper import Watch, WatchEvent, ZooKeeper

    from .backlog import Backlog
    from .groups import GroupIndex

#: Seconds after which a watched level is checked again while less urgent work continues: no watch on items reports a
#: lock that ends with its holder's session. Longer when a check takes long.
RECHECK: Final = 0.5
RECHECK_FACTOR: Final = 50
#: A level whose watch reports more than this many events in this many seconds is not idle.
BUSY_EVENTS: Final = 64
BUSY_SECONDS: Final = 0.2


class PriorityLevel:
    """The candidates and watches of one priority."""

    __slots__ = (
        "_began",
        "_events",
        "_watches",
        "backlog",
        "last_shard",
        "left",
        "must_list",
        "recheck_at",
        "seen_all",
        "tier",
        "watched",
    )

    def __init__(self, tier: Tier, backlog: Backlog) -> None:
        self.tier: Tier = tier
        self.backlog: Backlog = backlog
        self.must_list: bool = True
        """Whether its lanes must be listed before anything else of it is claimed."""
        self.seen_all: bool = False
        """Whether the last check covered all of its lanes."""
        self.last_shard: int = -1
        self.left: list[tuple[int, str]] = []
        """The lanes that held items at the last check and were not listed since, with their shards; the next one last.
        """
        self.recheck_at: float = 0.0
        """When it must be checked even if its watch has reported nothing."""
        self.watched: bool = False
        """Whether a watch reports its new items."""
        self._watches: list[Watch] = []
        self._events = 0
        self._began = 0.0

    @property
    def lanes(self) -> list[str]:
        """All its lanes, relative to the queue."""
        return [lane for shard in self.tier.shard_lanes for lane in shard]

    def found(self, filled: Collection[str], began: float) -> None:
        """Record which lanes hold items, to be listed in turn after the last one that was.

        The check ``began`` after `Backlog.begin_check`.
        """
        self.backlog.seen_empty([lane for lane in self.lanes if lane not in filled], began)
        shards = self.tier.shard_lanes
        turns = ((self.last_shard + 1 + turn) % len(shards) for turn in range(len(shards)))
        self.left = [(shard, lane) for shard in turns for lane in shards[shard] if lane in filled][::-1]

    def seen_empty(self, now: float, took: float) -> None:
        """Record that all of its lanes were empty when checked; items reported since are kept."""
        self.backlog.forget_listed()
        self.seen_all = True
        self.checked_at(now, took)

    def checked_at(self, now: float, took: float) -> None:
        """Record the time and duration of a check."""
        self.backlog.checked(now - took)
        self.recheck_at = now + max(RECHECK, RECHECK_FACTOR * took)

    async def watch(self, zookeeper: ZooKeeper, paths: QueuePaths, callback: Callable[[WatchEvent], None]) -> None:
        """Watch its lanes; check them afterwards for earlier items."""
        for start in range(0, len(self.lanes), PAGE):  # other requests of the session wait for one page, not for all
            watches = await asyncio.gather(
                *(
                    zookeeper.watch(paths.at(lane), callback, recursive=True)
                    for lane in self.lanes[start : start + PAGE]
                ),
                return_exceptions=True,
            )
            self._watches += [watch for watch in watches if not isinstance(watch, BaseException)]
            self.watched = bool(self._watches)
            for failure in watches:
                if isinstance(failure, BaseException):
                    self.unwatch()
                    raise failure

    def unwatch(self) -> None:
        """Stop listening."""
        for watch in self._watches:
            watch.cancel()
        self._watches, self.watched = [], False

    def count_event(self, now: float) -> None:
        """Count an event of the watch; too many, and the watch is removed."""
        if now - self._began > BUSY_SECONDS:
            self._began, self._events = now, 0
        self._events += 1
        if self._events > BUSY_EVENTS and self._watches:
            self.unwatch()
            self.must_list = True


class PriorityIndex:
    """All priorities of a queue, the most urgent first. The plain priority, 0, always exists."""

    def __init__(self, tiers: tuple[Tier, ...], backlog: Callable[[], Backlog]) -> None:
        self._backlog = backlog
        self._groups: GroupIndex | None = None
        self._levels = [PriorityLevel(tier, backlog()) for tier in tiers]
        self._by_priority = {level.tier.priority: level for level in self._levels}
        self.plain: PriorityLevel | None = self._only()
        """The only level of a queue without priorities."""
        self.share: Partition = Partition()
        """This consumer's share of the items."""

    def __iter__(self) -> Iterator[PriorityLevel]:
        return iter(self._levels)

    def _only(self) -> PriorityLevel | None:
        return self._levels[0] if len(self._levels) == 1 else None

    def adopt(self, tiers: tuple[Tier, ...]) -> None:
        """Adopt a changed configuration; known candidates are kept."""
        levels: list[PriorityLevel] = []
        for tier in tiers:
            level = self._by_priority.pop(tier.priority, None) or PriorityLevel(tier, self._backlog())
            if level.tier != tier:
                level.unwatch()
                level.tier, level.must_list, level.seen_all = tier, True, False
            level.backlog.use_groups(self._groups)
            level.backlog.reshare(self.share)
            levels.append(level)
        for level in self._by_priority.values():
            level.unwatch()
        self._levels, self._by_priority = levels, {level.tier.priority: level for level in levels}
        self.plain = self._only()

    def of(self, place: str) -> PriorityLevel:
        """Return the level of an item's place; the plain one if its priority is not known yet."""
        if len(self._levels) == 1:
            return self._levels[0]
        return self._by_priority.get(priority_at(place)) or self._by_priority[0]

    def clear(self) -> None:
        """Forget all candidates."""
        for level in self._levels:
            level.backlog.clear()
            level.must_list = True

    def must_list(self) -> None:
        """List everything again before anything else is claimed."""
        for level in self._levels:
            level.must_list = True

    def reshare(self, share: Partition) -> None:
        """Set this consumer's share."""
        self.share = share
        for level in self._levels:
            level.backlog.reshare(share)

    def reset_groups(self, groups: GroupIndex | None) -> None:
        """Forget all candidates, and use this index of the queue's groups from now on, if it has any."""
        self._groups = groups
        for level in self._levels:
            level.backlog.reset_groups(groups)
            level.must_list = True

    def lock(self, lock: str) -> None:
        """Record that another session holds a lock."""
        for level in self._levels:
            level.backlog.lock(lock)

    def unlock(self, lock: str) -> None:
        """Record that a lock has ended."""
        for level in self._levels:
            level.backlog.unlock(lock)

    def is_locked(self, lock: str) -> bool:
        """Whether another session is known to hold a lock."""
        return any(level.backlog.is_locked(lock) for level in self._levels)

    def put_back(self, places: Sequence[str]) -> None:
        """Return candidates to the front, to be tried next."""
        for level, own in self._split(places):
            level.backlog.put_back(own)

    def offer(self, places: Sequence[str], now: float) -> None:
        """Add due candidates, to be tried before the listed ones."""
        for level, own in self._split(places):
            level.backlog.offer(own, now)

    def put_last(self, places: Sequence[str]) -> None:
        """Return candidates that other consumers work on to the end."""
        for level, own in self._split(places):
            level.backlog.put_last(own)

    def may_steal(self, excluded: Callable[[str], bool], now: float) -> bool:
        """Whether one of other consumers' items, except excluded ids, may be stolen now."""
        return any(level.backlog.may_steal(excluded, now) for level in self._levels)

    @property
    def no_steal_before(self) -> float | None:
        """A moment before which no item of other consumers may be stolen; None: they have none."""
        moments = (level.backlog.no_steal_before for level in self._levels)
        return min((moment for moment in moments if moment is not None), default=None)

    def next_steal(self, excluded: Callable[[str], bool]) -> float | None:
        """When the first of other consumers' items, except excluded ids, may be stolen; None: no item."""
        dues = (level.backlog.next_steal(excluded) for level in self._levels)
        return min((due for due in dues if due is not None), default=None)

    @property
    def next_due(self) -> int | None:
        """When the earliest candidate is due, ms in ZooKeeper's time; None: now, or never."""
        return min((due for level in self._levels if (due := level.backlog.next_due) is not None), default=None)

    def unwatch(self) -> None:
        """Stop listening."""
        for level in self._levels:
            level.unwatch()

    def _split(self, places: Sequence[str]) -> list[tuple[PriorityLevel, Sequence[str]]]:
        if len(self._levels) == 1:
            return [(self._levels[0], places)]
        by_level: dict[int, tuple[PriorityLevel, list[str]]] = {}
        for place in places:
            level = self.of(place)
            by_level.setdefault(level.tier.priority, (level, []))[1].append(place)
        return list(by_level.values())
