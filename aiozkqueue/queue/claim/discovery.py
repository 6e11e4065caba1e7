"""Search for candidates by the listings, watches and timers of one session and queue.

A lane is listed when the backlog is empty, or when events may have been missed. Timed locks that have ended are
removed. When there is nothing to do, the source rests: it listens (see `watches`) until something happens.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from aiozkqueue.errors import ConfigConflictError
from aiozkqueue.layout import ItemRef, is_lane, name_at
from aiozkqueue.queue.candidates.batches import BatchVisibility, stage_of
from aiozkqueue.queue.candidates.groups import GroupIndex
from aiozkqueue.queue.candidates.partition import Partition
from aiozkqueue.queue.candidates.registration import Registration
from aiozkqueue.queue.candidates.watches import QueueWatch
from aiozkqueue.queue.redelivery.timed_locks import reap
from aiozkqueue.queue.state.snapshot import NO_REVISION
from aiozkqueue.runtime.clock import TRUSTED
from aiozkqueue.runtime.strings import shed
from aiozkqueue.zookeeper import NoAuthError

from .candidate_index import CandidateIndex
from .claimer import ReopenError
from .lane_reader import LaneReader
from .work_stealing import WorkStealer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from aiozkqueue.dialects import Dialect
    from aiozkqueue.layout import Condition
    from aiozkqueue.queue.candidates.filters import FilterSelector
    from aiozkqueue.queue.candidates.priorities import PriorityLevel
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.queue.state.snapshot import Revision
    from aiozkqueue.runtime.clock import Clock, ServerClock
    from aiozkqueue.runtime.lock_budget import SessionBudget
    from aiozkqueue.zookeeper import WatchEvent, ZooKeeper

#: A watch stays for this long after the last idle moment, so that a trickle of work does not arm and disarm it.
WATCH_LINGER = 0.2
#: Seconds between searches for timed locks of other sessions in a session that is never idle.
DUE_LISTING = 1.0
REAP_BATCH = 64
#: Seconds after which an idle consumer that waits for a time measures ZooKeeper's again: its clock may have been set.
LONGEST_REST = 300.0
#: Shards of a queue above which its lanes are checked for items before one is listed.
WIDE = 8
#: Other consumers' items that are claimed in one request: more than one consumer may want them.
STOLEN_TOGETHER = 2
#: A consumer with filters keeps its watch instead of listing again when a listing has this many items for others.
MANY_REFUSED = 1000
#: Seconds for which that watch then stays while no taker waits.
FILTERED_LINGER = 1.0


class Demand(Protocol):
    """The state of the waiting takers and their claims, as far as a candidate source needs it."""

    @property
    def impatient(self) -> bool:
        """Whether a taker takes only messages that are available now."""
        ...

    @property
    def claims_under_way(self) -> bool:
        """Whether claims are in flight, or being released."""
        ...


class CandidateSource(CandidateIndex):
    """Finds candidates for a dispatcher."""

    def __init__(
        self,
        state: QueueState,
        zookeeper: ZooKeeper,
        demand: Demand,
        *,
        clock: Clock,
        server_clock: ServerClock,
        client: str,
        about: bytes,
        budgets: SessionBudget,
        random: Random,
        condition: Condition | None = None,
    ) -> None:
        super().__init__(state, zookeeper, clock=clock, server_clock=server_clock, random=random, condition=condition)
        self.stealing: bool = False
        """Whether the last candidates are other consumers' items, found by a listing."""
        self.lingering: bool = False
        """Whether it waits, with nothing under way, because there are no takers."""
        self._zookeeper = zookeeper
        self._demand = demand
        self._registration = Registration(
            zookeeper, state.paths, client, about=about, budgets=budgets, clock=server_clock, condition=condition
        )
        self._watch = QueueWatch(zookeeper, state.paths, self)
        self._work_stealer = WorkStealer(
            zookeeper, state.paths, clock, excluded=self.held.__contains__, lock_ids=self.lock_ids
        )
        self._lane_reader = LaneReader(state, zookeeper, self._selector, self._doubts)
        self._revision = NO_REVISION
        self._last_idle = 0.0
        self._ripe = False  # whether other consumers' items may be due for stealing
        self._due_listed = 0.0

    # -- called by the dispatcher

    def follow(self) -> bool:
        """Adopt the queue's configuration; return whether it changed. Raises: ConfigConflictError: filters, order."""
        if self._revision == self.state.snapshot.revision:
            return False
        config = self.state.config
        if self._selector is not None and config.grouped:
            # The old revision stays recorded, so the next request is refused too.
            msg = (
                f"queue {self.state.name!r} delivers its messages in order, within a group or in total; "
                "take them without filters: a message that does not match would block those behind it"
            )
            raise ConfigConflictError(msg)
        self._revision = self.state.snapshot.revision
        self.relist()  # what was left out may count now
        if not config.scheduled:
            self._delayed.clear()  # the queue was created again
        if config.staged and self._batch_visibility is None:
            self._batch_visibility = BatchVisibility()
            self._priority_index.clear()  # events from before batches were considered
            self._delayed.clear()
        if self._groups is not None or config.grouped:
            self._disarm()
            self._groups = GroupIndex(config) if config.grouped else None
            self._priority_index.regroup(self._groups)
        return True

    @property
    def revision(self) -> Revision:
        """The revision of the queue's configuration for which candidates are chosen."""
        return self._revision

    @property
    def outdated(self) -> bool:
        """Whether the queue's configuration differs from the one in use here: a put may have changed or read it."""
        return self._revision != self.state.snapshot.revision

    def _disarm(self) -> None:
        self._watch.disarm()
        self._cancel_steal()
        if self._groups is not None:
            self._groups.watch(armed=False)

    def start_over(self) -> None:
        """Forget everything: a new ZooKeeper session begins."""
        self._priority_index.clear()
        self._doubts.clear()
        self._revision = NO_REVISION
        self._delayed.clear()
        if self._selector is not None:
            self._selector.start_over()
        self.forget_aside()
        self.drop_held(list(self.held))
        self._must_list_due = True

    def at_work(self) -> None:
        """Record that there is work; remove the watches when there has been work for a while."""
        if self._watch.armed and self._clock.monotonic() - self._last_idle > WATCH_LINGER and not self._keeps_watch:
            self._disarm()

    @property
    def _keeps_watch(self) -> bool:
        """Whether the queue has so many items for others that listing it again costs more than watching it.

        In a queue that another program also consumes this is always so: watches report its locks and more urgent items.
        """
        return self.state.dialect is not None or (self._selector is not None and self._selector.refused > MANY_REFUSED)

    def disarm(self) -> None:
        """Remove the watches."""
        self._disarm()
        self._priority_index.unwatch()

    # -- search

    async def register(self, generation: int) -> None:
        """Register this session as a consumer. Raises: ReopenError."""
        if not await self._registration.ensure(generation):
            raise ReopenError

    async def unregister(self) -> None:
        """End the registration as a consumer."""
        await self._registration.end()

    async def tend_timers(self, generation: int) -> None:
        """Add the candidates whose time has come: due items, and items whose timed locks have ended."""
        await self._free_ended(generation)
        if self.state.dialect is not None:
            await self._tend_foreign(self.state.dialect, generation)
        if not self.state.config.scheduled:
            return
        now = await self._time(self._delayed.next, generation)
        await self._delayed.look(now, generation, heard=self._watch.armed, asked=self._demand.impatient)
        places = self._delayed.due(await self._time(self._delayed.next, generation))
        if (accepts := self.state.snapshot.accepts) is not None:
            places = [place for place in places if accepts(name_at(place))]
        try:
            if self._batch_visibility is not None:
                places = await self._of_open_batches(self._batch_visibility, places, generation)
            if self._selector is not None:
                places = await self._selector.select(places, generation)
        except BaseException:
            self._delayed.must_look = True  # they must be found again
            raise
        if places:
            self._priority_index.offer(places, self._clock.monotonic())

    async def _tend_foreign(self, dialect: Dialect, generation: int) -> None:
        """Check which items still exist after their locks ended, and sample the clock where time matters."""
        if dialect.scheduled:
            await self._time(self._priority_index.next_due, generation)
        if self._doubts.too_many:
            self._priority_index.must_list()
        elif items := self._doubts.take():
            try:
                exist = await asyncio.gather(*(self._exists(self.state.paths.item(item), generation) for item in items))
            except BaseException:
                self._priority_index.must_list()  # they must be found again
                raise
            self._settle_doubts(items, exist)

    async def _time(self, due: int | None, generation: int) -> int:
        """Return ZooKeeper's time; it is measured again before an old measurement makes something due."""
        is_due = due is not None and due <= self._server_clock.now()
        await self._registration.sample_clock(generation, within=TRUSTED if is_due else LONGEST_REST)
        return self._server_clock.now()

    async def _exists(self, path: str, generation: int) -> bool:
        """Whether an item exists. An unreadable item counts: the claim finds that out and skips it."""
        try:
            return await self._zookeeper.exists(path, generation=generation) is not None
        except NoAuthError:
            return True

    async def _of_open_batches(
        self, batch_visibility: BatchVisibility, places: list[str], generation: int
    ) -> list[str]:
        """Leave out items of incomplete batches: the writer that completes one wakes consumers, which find them."""
        unknown = {
            stage for place in places if (stage := stage_of(place)) is not None and not batch_visibility.is_open(stage)
        }
        if not unknown:
            return places
        locks = await self._zookeeper.read_many(
            [self.state.paths.lock(stage) for stage in unknown], generation=generation
        )
        for stage, lock in zip(unknown, locks, strict=True):
            if lock is None:
                batch_visibility.found_open(stage)
        return [place for place in places if (stage := stage_of(place)) is None or batch_visibility.is_open(stage)]

    async def _free_ended(self, generation: int) -> None:
        now = self._clock.monotonic()
        if self._must_list_due or (not self._watch.armed and now - self._due_listed > DUE_LISTING):
            self._must_list_due = False
            try:
                await self._zookeeper.children_into(self.state.paths.due, lambda: self._timers, generation=generation)
            except BaseException:
                self._must_list_due = True
                raise
            self._due_listed = now
        if self._timers.next is None:
            return
        ended = self._timers.ended(await self._time(self._timers.next, generation), REAP_BATCH)
        if ended:
            try:
                freed = await reap(self._zookeeper, self.state.paths, ended, generation)
                if self._selector is not None:
                    freed = await self._selector.select(freed, generation)
                if (accepts := self.state.snapshot.accepts) is not None:
                    freed = [place for place in freed if accepts(name_at(place))]
                self._priority_index.put_back(freed)
            except BaseException:
                self._priority_index.must_list()
                self._must_list_due = True  # they must be found again
                raise

    async def look(self, limit: int, generation: int) -> list[str] | None:
        """Return the candidates to claim next: of this consumer's share, or else a few of other consumers' stale items.

        None means: wait for the batches in flight. They may return candidates, which a listing made now would miss.
        """
        if self.state.snapshot.tiers is not self._priority_index.tiers:
            self._priority_index.adopt(self.state.snapshot.tiers)
        if self._selector is not None and self._selector.undecided:
            await self._decide(self._selector, generation)
        level = self._priority_index.plain
        ripe, self._ripe, self.taking_over = self._ripe, False, False
        if level is None or len(level.tier.shard_lanes) > WIDE:
            return await self._look_by_urgency(limit, generation, ripe=ripe)
        if not level.must_list:
            places = await self._pop(level, limit)
            if places:
                return places
            if self._demand.claims_under_way:
                return None
            if ripe and (places := await self._take_over(level, limit, generation)):
                return places
        if not (level.must_list or self._demand.impatient) and self._watch.armed and level.seen_all:
            return []
        places = await self._list_lanes(level, limit, generation)
        # Batches in flight may answer the takers that do not wait.
        return None if not places and self._demand.claims_under_way else places

    def together(self) -> int | None:
        """Return how many of the last candidates to claim in one request; None: all of them."""
        level = self._priority_index.plain
        if level is None or self.state.dialect is not None:
            return None
        if self.stealing or self.taking_over:
            return STOLEN_TOGETHER
        return level.backlog.together(self._clock.monotonic())

    async def listed(self, limit: int) -> list[str]:
        """Return the candidates to claim next, of this consumer's share, of those that are listed already."""
        level = self._priority_index.plain
        return [] if level is None or level.must_list else await self._pop(level, limit)

    async def _decide(self, selector: FilterSelector, generation: int) -> None:
        """Add the reported items that match this consumer's filter."""
        places = await selector.heard(generation)
        if places is None:
            self._priority_index.must_list()
        for place in places or ():
            lane, name = ItemRef.parse(place)
            ids = {name: self.state.candidate_id(name)}
            self._priority_index.of(place).backlog.hear(lane, ids, self._clock.monotonic())

    async def _look_by_urgency(self, limit: int, generation: int, *, ripe: bool) -> list[str] | None:
        """Return the candidates to claim next from the most urgent level that has any."""
        above: list[PriorityLevel] = []
        empty: dict[PriorityLevel, bool] = {}  # of the levels checked in this look
        for level in self._priority_index:
            places: list[str] | None = [] if level.must_list else await self._pop(level, limit)
            if not places and ripe and not (level.must_list or self._demand.claims_under_way):
                places = await self._take_over(level, limit, generation)
            if not places:
                places = await self._search(level, limit, generation, empty)
            if places is None:
                return None
            if places:
                return await self._guard(above, places, generation)
            above.append(level)
        return None if self._demand.claims_under_way else []

    async def _search(
        self, level: PriorityLevel, limit: int, generation: int, empty: dict[PriorityLevel, bool]
    ) -> list[str] | None:
        """Return the next candidates of a level without known ones; None: wait for the batches in flight.

        ``empty`` has the levels that this look has checked, and whether they hold nothing.
        """
        if level.left and not (level.must_list or self._keeps_watch):
            if self._demand.claims_under_way:
                return None
            if places := await self._list_left(level, limit, generation):
                return places
        if not self._is_quiet(level):
            if level not in empty:
                levels = [each for each in self._priority_index if each is level or not self._is_quiet(each)]
                found = await self._skim([each for each in levels if each not in empty], generation)
                empty.update((each, each in found) for each in levels if each not in empty)
            if not empty[level]:
                if self._demand.claims_under_way:
                    level.must_list = True
                    return None
                return await (self._list_lanes if self._keeps_watch else self._list_filled)(level, limit, generation)
        if empty.get(level):  # delayed items
            return await self._pop(level, limit) or self._of_peers(level, limit)
        return []

    def _is_quiet(self, level: PriorityLevel) -> bool:
        """Whether a level has nothing left, and a watch would report new items."""
        if level.must_list or not level.seen_all or self._demand.impatient:
            return False
        return self._watch.armed or (level.watched and self._clock.monotonic() < level.look_again)

    async def _guard(self, above: list[PriorityLevel], places: list[str], generation: int) -> list[str]:
        """Watch the levels that are more urgent than these places; return the places."""
        unwatched = [level for level in above if not level.watched]
        if unwatched and not self._watch.armed:
            try:
                for level in unwatched:
                    await level.watch(self._zookeeper, self.state.paths, self._on_urgent)
                empty = await self._skim(unwatched, generation)
                for level in unwatched:
                    level.must_list = level.must_list or level not in empty
            except BaseException:
                self._priority_index.put_back(places)
                raise
        return places

    def _on_urgent(self, event: WatchEvent) -> None:
        place = self.state.paths.place_of(event.path)
        level = self._priority_index.of(ItemRef(place, "-").path if is_lane(place) else place)
        level.count_event(self._clock.monotonic())
        self._watch.pass_on(event)

    async def _skim(self, levels: Sequence[PriorityLevel], generation: int) -> set[PriorityLevel]:
        """Return the levels that hold no item at all, without listing any.

        These need not be listed unless an event arrives after the server's answer.
        """
        began = self._clock.monotonic()
        unlisted = [level for level in levels if level.must_list]
        empty: set[PriorityLevel] = set()
        for level in levels:
            level.must_list = False
        try:
            filled = await self._lane_reader.filled(levels, self._revision, generation)
            for level, lanes in filled.items():
                level.found(lanes)
            empty = {level for level, lanes in filled.items() if not lanes}
        finally:
            for level in unlisted:
                level.must_list = level.must_list or level not in empty
        now = self._clock.monotonic()
        for level in empty:
            level.seen_empty(now, now - began)
        return empty

    async def _pop(self, level: PriorityLevel, limit: int) -> list[str]:
        """Return the next candidates of a level. Other tasks run while many names are passed over."""
        while True:
            places = level.backlog.pop(limit, self.held.__contains__, self._clock.monotonic())
            if heads := self._heads(places):
                return heads
            if not places and not level.backlog.unfinished:
                return []
            await asyncio.sleep(0)

    def _heads(self, places: list[str]) -> list[str]:
        return places if self._groups is None else self._groups.heads(places)

    async def _list_lanes(self, level: PriorityLevel, limit: int, generation: int) -> list[str]:
        """List the lanes of a level one by one, until one has something for this consumer."""
        began = self._clock.monotonic()
        shards = level.tier.shard_lanes
        if self._keeps_watch and not self._watch.armed:
            await self._watch.arm(scheduled=self.state.config.scheduled, locks=self.state.dialect is not None)
            self._priority_index.must_list()  # items from before the watch are not reported
        level.must_list = level.seen_all = False  # lanes after one with items are listed once that is empty
        try:
            for _ in shards:
                level.last_shard = (level.last_shard + 1) % len(shards)
                for lane in shards[level.last_shard]:
                    await self._list(level, lane, generation)
                    places = await self._pop(level, limit)
                    if places:
                        level.seen_all = (
                            self._selector is not None and self._watch.armed and self._selector.kept_all(level.lanes)
                        )
                        return places
        except BaseException:
            level.must_list = True
            raise
        now = self._clock.monotonic()
        level.seen_all = True
        level.looked_at(now, now - began)
        return self._of_peers(level, limit)

    async def _list_filled(self, level: PriorityLevel, limit: int, generation: int) -> list[str]:
        """List the lanes of a level that hold items, by a check just made, until one has something for this consumer.

        The check covers the other lanes.
        """
        began = self._clock.monotonic()
        level.must_list = False
        if places := await self._list_left(level, limit, generation):
            return places
        now = self._clock.monotonic()
        level.seen_all = True
        level.looked_at(now, now - began)
        return self._of_peers(level, limit)

    async def _list_left(self, level: PriorityLevel, limit: int, generation: int) -> list[str]:
        """List the lanes that held items at the last check, until one has something for this consumer."""
        level.seen_all = False
        try:
            while level.left:
                level.last_shard, lane = level.left.pop()
                await self._list(level, lane, generation)
                if places := await self._pop(level, limit):
                    return places
        except BaseException:
            level.must_list = True  # the lane being listed is no longer among those that are left
            raise
        return []

    def _of_peers(self, level: PriorityLevel, limit: int) -> list[str]:
        """Return other consumers' items: any, to a taker that asks for what is available now; otherwise stale ones."""
        backlog = level.backlog
        if self._demand.impatient:
            places = self._heads(backlog.take_of_peers(limit, self.held.__contains__))
            if places:
                level.must_list = True
            return places
        stolen = self._heads(backlog.steal(self.held.__contains__, self._clock.monotonic()))
        backlog.put_back(stolen[limit:])  # for the next batches
        self.stealing = bool(stolen)
        return stolen[:limit]

    async def _take_over(self, level: PriorityLevel, limit: int, generation: int) -> list[str]:
        """Return a few of other consumers' stale items that watches have reported."""
        if not self._watch.armed or not level.seen_all or self._demand.impatient:
            return []
        places = await self._work_stealer.take_over(level.backlog, limit, generation)
        level.must_list = level.must_list or places is None
        taken = self._heads(places or [])
        self.taking_over, self.stealing = bool(taken), False
        return taken

    async def _list(self, level: PriorityLevel, lane: str, generation: int) -> None:
        paths, backlog = self.state.paths, level.backlog
        self.stealing = self.taking_over = False
        self._gone = set()
        ended = self._ended
        self._doubts.clear()
        backlog.begin_listing(lane)
        try:
            consumers = await self._zookeeper.children(paths.consumers, generation=generation)
            # Consumers of other nodes are registered too: items that only this node accepts are not shared with them.
            accepts = self.state.snapshot.accepts
            share = await self._registration.share(consumers, generation)
            self._priority_index.reshare(share if accepts is None else Partition())
            listed, locked = await self._lane_reader.read(
                backlog,
                lane,
                self._batch_visibility,
                ordered=self._groups is not None or self.state.dialect is not None,
                revision=self._revision,
                generation=generation,
            )
            locked |= self._gone  # items that ended while the listings were running may appear in them as free
            backlog.fill(lane, listed, locked, self._clock.monotonic())
            if self._groups is not None and self._groups.blocked and self._ended != ended:
                self.on_relist()  # it may be blocked by a lock that has ended since
            replaced, backlog.replaced = backlog.replaced, []
            await shed(*replaced)
        finally:
            self._gone = None

    async def listen(self) -> None:
        """Watch the queue from now on, so that new items need no listing."""
        if not self._watch.armed:
            await self.rest()

    async def rest(self) -> None:
        """Arm the watches; once they are armed, wait for an event."""
        self._last_idle = self._clock.monotonic()
        if self._watch.armed and self._watch.scheduled != self.state.config.scheduled:
            self._disarm()
        if not self._watch.armed:
            self.wakeup.clear()
            await self._watch.arm(
                scheduled=self.state.config.scheduled, locks=self._groups is not None or self.state.dialect is not None
            )
            if self._groups is not None:
                self._groups.watch(armed=True)
            self._priority_index.unwatch()
            self._priority_index.must_list()
            self._must_list_due = self._delayed.must_look = True
            return
        now = self._server_clock.now()
        waits = [
            max(0.0, (due - now) / 1000)
            for due in (self._timers.next, self._delayed.next, self._priority_index.next_due)
            if due is not None
        ]
        self._schedule_steal()
        await self.await_wakeup(min([*waits, LONGEST_REST]) if waits else None)
        self._last_idle = self._clock.monotonic()
        self._ripe = self._may_steal  # most are gone by now: their own consumers took them

    async def linger(self, wanted: Callable[[], bool]) -> None:
        """Wait for a wakeup while no taker waits; remove the watches when that lasts."""
        armed = self._watch.armed or any(level.watched for level in self._priority_index)
        linger, since = FILTERED_LINGER if self._keeps_watch else WATCH_LINGER, self._clock.monotonic()
        self.lingering = True
        try:
            await self.await_wakeup(linger if armed else None)
        finally:
            self.lingering = False
        # A source that would have to list again, or is woken between two messages of a group, still has work.
        watch_on = self._keeps_watch or self._groups is not None
        if armed and not wanted() and not (watch_on and self._clock.monotonic() - since < linger):
            self.disarm()

    async def await_wakeup(self, limit: float | None) -> None:
        """Wait for a wakeup, up to ``limit`` seconds."""
        timer = None if limit is None else self._clock.call_later(limit, self.wakeup.set)
        try:
            await self.wakeup.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self.wakeup.clear()
