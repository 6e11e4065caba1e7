"""Search for candidates by the listings, watches and timers of one session and queue.

A lane is listed when the backlog is empty, or when events may have been missed. Timed locks that have ended are
removed. When there is nothing to do, the source waits for events (see `watches`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from aiozkqueue.layout import ItemRef, is_lane, name_at
from aiozkqueue.queue.candidates.batches import batch_lock_of
from aiozkqueue.queue.candidates.partition import Partition
from aiozkqueue.queue.redelivery.timed_locks import reap
from aiozkqueue.runtime.clock import TRUSTED
from aiozkqueue.runtime.strings import clear_gradually
from aiozkqueue.zookeeper import NoAuthError

from .candidate_index import DUE_LISTING, Origin
from .claimer import ReopenError
from .lane_reader import LaneReader
from .work_stealing import WorkStealer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.dialects import Dialect
    from aiozkqueue.queue.candidates.batches import BatchVisibility
    from aiozkqueue.queue.candidates.filters import FilterSelector
    from aiozkqueue.queue.candidates.priorities import PriorityLevel
    from aiozkqueue.zookeeper import WatchEvent

    from .services import ClaimServices
    from .watched_index import WatchedIndex

#: A watch stays for this long after the last idle moment, so that a trickle of work does not arm and disarm it.
WATCH_LINGER = 0.2
REAP_BATCH = 64
#: Seconds after which an idle consumer that waits for a time measures ZooKeeper's again: its clock may have been set.
LONGEST_SLEEP = 300.0
#: Shards of a queue above which its lanes are checked for items before one is listed.
WIDE = 8
#: Seconds for which the watch of a consumer with filters stays while no taker waits; see `CandidateIndex.keeps_watch`.
FILTERED_LINGER = 1.0


class SearchResult(NamedTuple):
    """The result of a search for candidates."""

    places: list[str]
    """The candidates to claim next."""
    pending: bool = False
    """Whether there are none yet: the batches in flight may return some, which a listing made now would miss."""


NOTHING: Final = SearchResult([])
PENDING: Final = SearchResult([], pending=True)


class Demand(Protocol):
    """The state of the waiting takers and their claims, as far as a candidate source needs it."""

    @property
    def any_nonblocking(self) -> bool:
        """Whether a taker takes only messages that are available now."""
        ...

    @property
    def claims_in_progress(self) -> bool:
        """Whether claims are in flight, or being released."""
        ...


class CandidateSource:
    """Finds candidates for a dispatcher, and adds them to the index."""

    def __init__(self, services: ClaimServices, index: WatchedIndex, demand: Demand) -> None:
        zookeeper, clock = services.zookeeper, services.clock
        self._index = index
        self._state = state = index.state
        self._levels = index.levels
        self._watch = index.watch
        self._registration = index.registration
        self._selector = index.selector
        self._timers = index.timers
        self._delayed = index.delayed
        self._doubts = index.doubts
        self._zookeeper = zookeeper
        self._demand = demand
        self._clock = clock
        self._server_clock = services.server_clock
        self._work_stealer = WorkStealer(
            zookeeper, state.paths, clock, excluded=index.held.__contains__, lock_ids=index.lock_ids
        )
        self._lane_reader = LaneReader(state, zookeeper, index.selector, index.doubts)
        self._last_idle = self._shared_at = 0.0

    def at_work(self) -> None:
        """Record that there is work; remove the watches when there has been work for a while."""
        index = self._index
        if index.watch.armed and self._clock.monotonic() - self._last_idle > WATCH_LINGER and not index.keeps_watch:
            index.disarm()

    # -- search

    async def register(self, generation: int) -> None:
        """Register this session as a consumer. Raises: ReopenError."""
        if not await self._registration.ensure(generation):
            raise ReopenError

    async def update_share(self, generation: int, *, within: float = 0.0) -> None:
        """Share with the consumers that are registered now, unless that was done less than ``within`` seconds ago."""
        if (now := self._clock.monotonic()) - self._shared_at < within:
            return
        consumers = await self._zookeeper.children(self._state.paths.consumers, generation=generation)
        # Consumers of other nodes are registered too: items that only this node accepts are not shared with them.
        accepts = self._state.snapshot.accepts
        share = await self._registration.share(consumers, generation)
        self._levels.reshare(share if accepts is None else Partition())
        self._shared_at = now

    async def unregister(self) -> None:
        """End the registration as a consumer."""
        await self._registration.end()

    async def process_timers(self, generation: int) -> None:
        """Add the candidates whose time has come: due items, and items whose timed locks have ended."""
        await self._free_ended(generation)
        if self._state.dialect is not None:
            await self._process_foreign(self._state.dialect, generation)
        if not self._state.config.scheduled:
            return
        now = await self._time(self._delayed.next, generation)
        await self._delayed.refresh(now, generation, watched=self._watch.armed, asked=self._demand.any_nonblocking)
        places = self._delayed.due(await self._time(self._delayed.next, generation))
        try:
            places = await self._accepted(places, generation)
            if (batch_visibility := self._index.batch_visibility) is not None:
                places = await self._of_open_batches(batch_visibility, places, generation)
        except BaseException:
            self._delayed.must_refresh = True  # they must be found again
            raise
        if places:
            self._levels.offer(places, self._clock.monotonic())

    async def _process_foreign(self, dialect: Dialect, generation: int) -> None:
        """Check which items still exist after their locks ended, and sample the clock where time matters."""
        if dialect.scheduled:
            await self._time(self._levels.next_due, generation)
        if self._doubts.too_many:
            self._levels.must_list()
        elif items := self._doubts.take():
            try:
                exist = await asyncio.gather(
                    *(self._exists(self._state.paths.item(item), generation) for item in items)
                )
            except BaseException:
                self._levels.must_list()  # they must be found again
                raise
            self._index.settle_doubts(items, exist)

    async def _time(self, due: int | None, generation: int) -> int:
        """Return ZooKeeper's time; it is measured again before an old measurement makes something due."""
        is_due = due is not None and due <= self._server_clock.now()
        await self._registration.sample_clock(generation, within=TRUSTED if is_due else LONGEST_SLEEP)
        return self._server_clock.now()

    async def _exists(self, path: str, generation: int) -> bool:
        """Whether an item exists. An unreadable item counts: the claim finds that out and skips it."""
        try:
            return await self._zookeeper.exists(path, generation=generation) is not None
        except NoAuthError:
            return True

    async def _of_open_batches(self, batches: BatchVisibility, places: list[str], generation: int) -> list[str]:
        """Leave out items of incomplete batches: the writer that completes one wakes consumers, which find them."""
        unknown = {lock for lock in map(batch_lock_of, places) if lock is not None and not batches.is_open(lock)}
        if not unknown:
            return places
        paths = [self._state.paths.lock(lock) for lock in unknown]
        for lock, node in zip(unknown, await self._zookeeper.read_many(paths, generation=generation), strict=True):
            if node is None:
                batches.found_open(lock)
        locks = map(batch_lock_of, places)
        return [place for place, lock in zip(places, locks, strict=True) if lock is None or batches.is_open(lock)]

    async def _accepted(self, places: list[str], generation: int) -> list[str]:
        """Leave out items that this consumer does not take, because of its node or its filter."""
        if (accepts := self._state.snapshot.accepts) is not None:
            places = [place for place in places if accepts(name_at(place))]
        return places if self._selector is None else await self._selector.select(places, generation)

    async def _free_ended(self, generation: int) -> None:
        now = self._clock.monotonic()
        if self._timers.must_list or (not self._watch.armed and now - self._timers.listed_at > DUE_LISTING):
            self._timers.must_list = False
            try:
                await self._zookeeper.children_into(self._state.paths.due, lambda: self._timers, generation=generation)
            except BaseException:
                self._timers.must_list = True
                raise
            self._timers.listed_at = now
        if self._timers.next is None:
            return
        ended = self._timers.ended(await self._time(self._timers.next, generation), REAP_BATCH)
        if ended:
            try:
                freed = await reap(self._zookeeper, self._state.paths, ended, generation)
                self._levels.put_back(await self._accepted(freed, generation))
            except BaseException:
                self._levels.must_list()
                self._timers.must_list = True  # they must be found again
                raise

    async def find_candidates(self, limit: int, generation: int) -> SearchResult:
        """Find candidates when `CandidateIndex.next` has none.

        They are from this consumer's share, or else a few stale items of other consumers.
        """
        if self._selector is not None and self._selector.undecided:
            await self._add_matching(self._selector, generation)
        index, level = self._index, self._levels.plain
        stale_due, index.stealing.stale_due = index.stealing.stale_due, False
        if index.origin is Origin.TAKEN_OVER:
            index.origin = Origin.OWN
        if level is None or len(level.tier.shard_lanes) > WIDE:
            return await self._find_by_urgency(limit, generation, stale_due=stale_due)
        if not level.must_list:
            places = await index.pop(level, limit)
            if not places and self._demand.claims_in_progress:
                return PENDING
            if not places and stale_due:
                places = await self._take_over(level, limit, generation)
            if places:
                return SearchResult(places)
        if not (level.must_list or self._demand.any_nonblocking) and self._watch.armed and level.seen_all:
            return NOTHING
        places = await self._list_lanes(level, limit, generation)
        return SearchResult(places) if places else self._nothing_found()

    def _nothing_found(self) -> SearchResult:
        """Return the result of a search that found nothing: batches in flight may answer takers that do not wait."""
        return PENDING if self._demand.claims_in_progress else NOTHING

    async def _add_matching(self, selector: FilterSelector, generation: int) -> None:
        """Add the reported items that match this consumer's filter."""
        places = await selector.take_matching(generation)
        if places is None:
            self._levels.must_list()
        for place in places or ():
            lane, name = ItemRef.parse(place)
            ids = {name: self._state.candidate_id(name)}
            self._levels.of(place).backlog.add_reported(lane, ids, self._clock.monotonic())

    async def _find_by_urgency(self, limit: int, generation: int, *, stale_due: bool) -> SearchResult:
        """Find candidates in the most urgent level that has any."""
        above: list[PriorityLevel] = []
        empty: dict[PriorityLevel, bool] = {}  # of the levels checked in this search
        for level in self._levels:
            places = [] if level.must_list else await self._index.pop(level, limit)
            if not places and stale_due and not (level.must_list or self._demand.claims_in_progress):
                places = await self._take_over(level, limit, generation)
            found = SearchResult(places) if places else await self._find_in_level(level, limit, generation, empty)
            if found.pending:
                return found
            if found.places:
                return SearchResult(await self._watch_above(above, found.places, generation))
            above.append(level)
        return self._nothing_found()

    async def _find_in_level(
        self, level: PriorityLevel, limit: int, generation: int, empty: dict[PriorityLevel, bool]
    ) -> SearchResult:
        """Find candidates in a level without known candidates.

        ``empty`` maps the levels that this search has checked to whether they are empty.
        """
        if level.left and not (level.must_list or self._index.keeps_watch):
            if self._demand.claims_in_progress:
                return PENDING
            if places := await self._list_left(level, limit, generation):
                return SearchResult(places)
        if not self._is_quiet(level):
            if level not in empty:
                levels = [each for each in self._levels if each is level or not self._is_quiet(each)]
                found = await self._empty_levels([each for each in levels if each not in empty], generation)
                empty.update((each, each in found) for each in levels if each not in empty)
            if not empty[level]:
                if self._demand.claims_in_progress:
                    level.must_list = True
                    return PENDING
                list_level = self._list_lanes if self._index.keeps_watch else self._list_filled
                return SearchResult(await list_level(level, limit, generation))
        if empty.get(level):  # delayed items
            return SearchResult(await self._index.pop(level, limit) or self._take_of_peers(level, limit))
        return NOTHING

    def _is_quiet(self, level: PriorityLevel) -> bool:
        """Whether a level has nothing left, and a watch would report new items."""
        if level.must_list or not level.seen_all or self._demand.any_nonblocking:
            return False
        return self._watch.armed or (level.watched and self._clock.monotonic() < level.recheck_at)

    async def _watch_above(self, above: list[PriorityLevel], places: list[str], generation: int) -> list[str]:
        """Watch the levels that are more urgent than these places; return the places."""
        unwatched = [level for level in above if not level.watched]
        if unwatched and not self._watch.armed:
            try:
                for level in unwatched:
                    await level.watch(self._zookeeper, self._state.paths, self._on_urgent)
                empty = await self._empty_levels(unwatched, generation)
                for level in unwatched:
                    level.must_list = level.must_list or level not in empty
            except BaseException:
                self._levels.put_back(places)
                raise
        return places

    def _on_urgent(self, event: WatchEvent) -> None:
        place = self._state.paths.place_of(event.path)
        level = self._levels.of(ItemRef(place, "-").path if is_lane(place) else place)
        level.count_event(self._clock.monotonic())
        self._watch.pass_on(event)

    async def _empty_levels(self, levels: Sequence[PriorityLevel], generation: int) -> set[PriorityLevel]:
        """Return the levels that hold no item at all, without listing any.

        These need not be listed unless an event arrives after the server's answer.
        """
        began = self._clock.monotonic()
        unlisted = [level for level in levels if level.must_list]
        empty: set[PriorityLevel] = set()
        for level in levels:
            level.must_list = False
            level.backlog.begin_check()
        try:
            filled = await self._lane_reader.filled(levels, self._index.revision, generation)
            for level, lanes in filled.items():
                level.found(lanes, began)
            empty = {level for level, lanes in filled.items() if not lanes}
        finally:
            for level in unlisted:
                level.must_list = level.must_list or level not in empty
        now = self._clock.monotonic()
        for level in empty:
            level.seen_empty(now, now - began)
        return empty

    async def _list_lanes(self, level: PriorityLevel, limit: int, generation: int) -> list[str]:
        """List the lanes of a level one by one, until one has something for this consumer."""
        began = self._clock.monotonic()
        shards = level.tier.shard_lanes
        if self._index.keeps_watch and not self._watch.armed:
            await self._watch.arm(scheduled=self._state.config.scheduled, locks=self._state.dialect is not None)
            self._levels.must_list()  # items from before the watch are not reported
        level.must_list = level.seen_all = False  # lanes after one with items are listed once that is empty
        try:
            for _ in shards:
                level.last_shard = (level.last_shard + 1) % len(shards)
                for lane in shards[level.last_shard]:
                    await self._list(level, lane, generation)
                    places = await self._index.pop(level, limit)
                    if places:
                        level.seen_all = (
                            self._selector is not None and self._watch.armed and self._selector.kept_all(level.lanes)
                        )
                        return places
        except BaseException:
            level.must_list = True
            raise
        return self._listed_all(level, limit, began)

    async def _list_filled(self, level: PriorityLevel, limit: int, generation: int) -> list[str]:
        """List the lanes of a level that hold items, by a check just made, until one has something for this consumer.

        The check covers the other lanes.
        """
        began = self._clock.monotonic()
        level.must_list = False
        if places := await self._list_left(level, limit, generation):
            return places
        return self._listed_all(level, limit, began)

    def _listed_all(self, level: PriorityLevel, limit: int, began: float) -> list[str]:
        """Record that no lane has anything left for this consumer; return other consumers' items."""
        now = self._clock.monotonic()
        level.seen_all = True
        level.checked_at(now, now - began)
        return self._take_of_peers(level, limit)

    async def _list_left(self, level: PriorityLevel, limit: int, generation: int) -> list[str]:
        """List the lanes that held items at the last check, until one has something for this consumer."""
        level.seen_all = False
        try:
            while level.left:
                level.last_shard, lane = level.left.pop()
                await self._list(level, lane, generation)
                if places := await self._index.pop(level, limit):
                    return places
        except BaseException:
            level.must_list = True  # the lane being listed is no longer among those that are left
            raise
        return []

    def _take_of_peers(self, level: PriorityLevel, limit: int) -> list[str]:
        """Return other consumers' items: any, to a taker that does not wait; otherwise stale ones."""
        index, backlog = self._index, level.backlog
        if self._demand.any_nonblocking:
            places = index.heads(backlog.take_of_peers(limit, index.held.__contains__))
            if places:
                level.must_list = True
            return places
        stolen = index.heads(backlog.steal(index.held.__contains__, self._clock.monotonic()))
        backlog.put_back(stolen[limit:])  # for the next batches
        index.origin = Origin.STOLEN if stolen else Origin.OWN
        return stolen[:limit]

    async def _take_over(self, level: PriorityLevel, limit: int, generation: int) -> list[str]:
        """Return a few of other consumers' stale items that watches have reported."""
        if not self._watch.armed or not level.seen_all or self._demand.any_nonblocking:
            return []
        places = await self._work_stealer.take_over(level.backlog, limit, generation)
        level.must_list = level.must_list or places is None
        taken = self._index.heads(places or [])
        self._index.origin = Origin.TAKEN_OVER if taken else Origin.OWN
        return taken

    async def _list(self, level: PriorityLevel, lane: str, generation: int) -> None:
        index, backlog = self._index, level.backlog
        index.origin = Origin.OWN
        gone = index.begin_listing()
        ended = 0 if index.groups is None else index.groups.ended
        self._doubts.clear()
        backlog.begin_listing(lane)
        try:
            await self.update_share(generation)
            listed, locked = await self._lane_reader.read(
                backlog,
                lane,
                index.batch_visibility,
                ordered=index.groups is not None or self._state.dialect is not None,
                revision=index.revision,
                generation=generation,
            )
            locked |= gone  # items that ended while the listings were running may appear in them as free
            backlog.fill(lane, listed, locked, self._clock.monotonic())
            if index.groups is not None and index.groups.blocked and index.groups.ended != ended:
                index.on_relist()  # it may be blocked by a lock that has ended since
            replaced, backlog.replaced = backlog.replaced, []
            await clear_gradually(*replaced)
        finally:
            index.end_listing()

    async def listen(self) -> None:
        """Watch the queue from now on, so that new items need no listing."""
        if not self._watch.armed:
            await self.sleep()

    async def sleep(self) -> None:
        """Arm the watches; once they are armed, wait for an event."""
        self._last_idle = self._clock.monotonic()
        if self._watch.armed and self._watch.scheduled != self._state.config.scheduled:
            self._index.disarm()
        if not self._watch.armed:
            self._index.wakeup.clear()
            groups = self._index.groups
            await self._watch.arm(
                scheduled=self._state.config.scheduled, locks=groups is not None or self._state.dialect is not None
            )
            if self._index.groups is not None:
                self._index.groups.watch(armed=True)
            self._levels.unwatch()
            self._levels.must_list()
            self._timers.must_list = self._delayed.must_refresh = True
            return
        now = self._server_clock.now()
        waits = [
            max(0.0, (due - now) / 1000)
            for due in (self._timers.next, self._delayed.next, self._levels.next_due)
            if due is not None
        ]
        self._index.stealing.schedule()
        await self.await_wakeup(min([*waits, LONGEST_SLEEP]) if waits else None)
        self._last_idle = self._clock.monotonic()
        self._index.stealing.update()  # most are gone by now: their own consumers took them

    async def linger(self) -> bool:
        """Wait for a wakeup while no taker waits, but not for long; return whether the watches may be removed then."""
        index = self._index
        linger, since = FILTERED_LINGER if index.keeps_watch else WATCH_LINGER, self._clock.monotonic()
        await self.await_wakeup(linger)
        # A source that would have to list again, or is woken between two messages of a group, still has work.
        watch_on = index.keeps_watch or index.groups is not None
        return not (watch_on and self._clock.monotonic() - since < linger)

    async def await_wakeup(self, limit: float | None) -> None:
        """Wait for a wakeup, up to ``limit`` seconds."""
        timer = None if limit is None else self._clock.call_later(limit, self._index.wakeup.set)
        try:
            await self._index.wakeup.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self._index.wakeup.clear()
