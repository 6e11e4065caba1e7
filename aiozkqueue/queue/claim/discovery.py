"""Where the next candidates are: listings, watches and timers of one session and queue.

A lane is listed when the backlog has run out, or events may have been missed; locks that have ended are taken off; and
when there is nothing to do, the lookout rests: it listens (see `idle`) until something happens.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Protocol

from aiozkqueue.errors import ConfigConflictError
from aiozkqueue.layout import parse_due
from aiozkqueue.queue.candidates.batches import BatchVisibility, stage_of
from aiozkqueue.queue.candidates.collectors import Dealt, Matching
from aiozkqueue.queue.candidates.groups import GroupIndex
from aiozkqueue.queue.candidates.listing_length import warn_of_length
from aiozkqueue.queue.candidates.partition import Partition
from aiozkqueue.queue.candidates.registration import Registration
from aiozkqueue.queue.candidates.watches import QueueWatch
from aiozkqueue.queue.redelivery.timed_locks import reap
from aiozkqueue.zookeeper import NoAuthError

from .candidate_index import CandidateIndex
from .claimer import ReopenError
from .work_stealing import LeftLying

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from aiozkqueue.dialects import Dialect
    from aiozkqueue.layout import Condition
    from aiozkqueue.queue.candidates.filters import FilterSelector
    from aiozkqueue.queue.candidates.priorities import PriorityLevel
    from aiozkqueue.queue.runtime.clock import Clock, ServerClock
    from aiozkqueue.queue.state.claim import SessionBudget
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import WatchEvent, ZooKeeper

#: A watch stays for this long after the last idle moment, so that a trickle of work does not arm and disarm it.
WATCH_LINGER = 0.2
#: How often one that is never idle looks for locks whose end others have set.
DUE_LISTING = 1.0
REAP_BATCH = 64
#: A consumer with filters goes on listening, rather than list again, when a listing has so much for others.
MANY_REFUSED = 1000
#: Then its watch stays for this long while nobody waits.
FILTERED_LINGER = 1.0
#: Lanes looked at in one request.
SKIM = 256


class Demand(Protocol):
    """What the lookout must know of those who wait."""

    @property
    def asking(self) -> bool:
        """Whether somebody wants to know what is there now, and does not wait for more."""
        ...

    @property
    def flying(self) -> bool:
        """Whether claims are under way."""
        ...


class CandidateSource(CandidateIndex):
    """Finds candidates for a dispenser."""

    def __init__(
        self,
        store: QueueState,
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
        super().__init__(store, zookeeper, clock=clock, server_clock=server_clock, random=random, condition=condition)
        self.stealing: bool = False
        """Whether what was found last is other consumers', by a listing."""
        self._zookeeper = zookeeper
        self._demand = demand
        self._registration = Registration(
            zookeeper, store.paths, client, about=about, budgets=budgets, clock=server_clock, condition=condition
        )
        self._watch = QueueWatch(zookeeper, store.paths, self)
        self._left_lying = LeftLying(
            zookeeper, store.paths, clock, excluded=self.held.__contains__, lock_ids=self.lock_ids
        )
        self._version = -1
        self._last_idle = 0.0
        self._ripe = False  # whether something of others may have been left lying for long enough
        self._due_listed = 0.0
        self._warned = False

    # -- told by the dispenser

    def follow(self) -> bool:
        """Go by the store's configuration; whether it is another. Raises: ConfigConflictError: filters and an order."""
        if self._version == self.store.version:
            return False
        config = self.store.config
        if (
            self._selector is not None and config.grouped
        ):  # whoever asks next is told, too: it goes on by the one before
            msg = (
                f"queue {self.store.name!r} hands over its messages in order, of a group or of all; "
                "take them without filters: one that does not pass would hold up those behind it"
            )
            raise ConfigConflictError(msg)
        self._version = self.store.version
        if config.staged and self._batch_visibility is None:
            self._batch_visibility = BatchVisibility()
            self._priority_index.clear()  # what was heard of before it was known what to look for
            self._later.clear()
        if self._groups is not None or config.grouped:
            self._disarm()
            self._groups = GroupIndex(config) if config.grouped else None
            self._priority_index.regroup(self._groups)
        return True

    @property
    def outdated(self) -> bool:
        """Whether the store has another configuration than this goes by: whoever puts may have changed or read it."""
        return self._version != self.store.version

    def _disarm(self) -> None:
        self._watch.disarm()
        self._mind_others_no_more()
        if self._groups is not None:
            self._groups.watch(armed=False)

    def start_over(self) -> None:
        """Forget all: another ZooKeeper session begins."""
        self._priority_index.clear()
        self._doubts.clear()
        self._version = -1
        self._later.clear()
        if self._selector is not None:
            self._selector.start_over()
        self.forget_aside()
        self.end(list(self.held))
        self._must_list_due = True

    def at_work(self) -> None:
        """There is something to do: take the watches off when that has been so for a while."""
        if self._watch.armed and self._clock.monotonic() - self._last_idle > WATCH_LINGER and not self._among_many:
            self._disarm()

    @property
    def _among_many(self) -> bool:
        """Whether so much lies there for others that listing it again would cost more than to go on listening.

        Beside another program's consumers it always does: their locks, and what is more urgent, are told by watches.
        """
        return self.store.dialect is not None or (self._selector is not None and self._selector.refused > MANY_REFUSED)

    def disarm(self) -> None:
        """Take the watches off."""
        self._disarm()
        self._priority_index.unwatch()

    # -- looking

    async def register(self, generation: int) -> None:
        """Make this session known among the consumers. Raises: ReopenError."""
        if not await self._registration.ensure(generation):
            raise ReopenError

    async def tend_timers(self, generation: int) -> None:
        """Find what a time has come for: items that are due, and those whose locks have ended, are candidates."""
        await self._free_ended(generation)
        if self.store.dialect is not None:
            await self._tend_foreign(self.store.dialect, generation)
        if not self.store.config.scheduled:
            return
        await self._registration.sample_clock(generation)
        now = self._server_clock.now()
        await self._later.look(now, generation, heard=self._watch.armed, asked=self._demand.asking)
        places = self._later.due(now)
        if (takes := self.store.takes) is not None:
            places = [place for place in places if takes(place.rpartition("/")[2])]
        try:
            if self._batch_visibility is not None:
                places = await self._opened(self._batch_visibility, places, generation)
            if self._selector is not None:
                places = await self._selector.sift(places, generation)
        except BaseException:
            self._later.must_look = True  # they must be found again
            raise
        if places:
            self._priority_index.offer(places, self._clock.monotonic())

    async def _tend_foreign(self, dialect: Dialect, generation: int) -> None:
        """Find out which items are there whose locks have ended, and what time it is where that matters."""
        if dialect.scheduled:
            await self._registration.sample_clock(generation)
        if self._doubts.too_many:
            self._priority_index.must_list()
        elif items := self._doubts.take():
            look = self._exists
            try:
                found = await asyncio.gather(*(look(self.store.paths.item(one), generation) for one in items))
            except BaseException:
                self._priority_index.must_list()  # they must be found again
                raise
            self._settle_doubts(items, found)

    async def _exists(self, path: str, generation: int) -> bool:
        """Whether an item is there; one that may not be read is found out, and passed by, when it is claimed."""
        try:
            return await self._zookeeper.exists(path, generation=generation) is not None
        except NoAuthError:
            return True

    async def _opened(self, batch_visibility: BatchVisibility, places: list[str], generation: int) -> list[str]:
        """Leave out what is in batches that are not complete; who completes one rings, and it is found again."""
        unknown = {
            stage for place in places if (stage := stage_of(place)) is not None and not batch_visibility.is_open(stage)
        }
        if not unknown:
            return places
        locks = await self._zookeeper.read_many([self.store.paths.lock(one) for one in unknown], generation=generation)
        for stage, lock in zip(unknown, locks, strict=True):
            if lock is None:
                batch_visibility.found_open(stage)
        return [place for place in places if (stage := stage_of(place)) is None or batch_visibility.is_open(stage)]

    async def _free_ended(self, generation: int) -> None:
        now = self._clock.monotonic()
        if self._must_list_due or (not self._watch.armed and now - self._due_listed > DUE_LISTING):
            self._must_list_due = False
            try:
                names = await self._zookeeper.children(self.store.paths.due, generation=generation)
            except BaseException:
                self._must_list_due = True
                raise
            for name in names:
                if timed := parse_due(name):
                    self._timers.add(*timed)
            self._due_listed = now
        if self._timers.next is None:
            return
        await self._registration.sample_clock(generation)
        ended = self._timers.ended(self._server_clock.now(), REAP_BATCH)
        if ended:
            try:
                freed = await reap(self._zookeeper, self.store.paths, ended, generation)
                if self._selector is not None:
                    freed = await self._selector.sift(freed, generation)
                if (takes := self.store.takes) is not None:
                    freed = [place for place in freed if takes(place.rpartition("/")[2])]
                self._priority_index.put_back(freed)
            except BaseException:
                self._priority_index.must_list()
                self._must_list_due = True  # they must be found again
                raise

    async def look(self, limit: int, generation: int) -> list[str] | None:
        """Return what to claim next: of this consumer's share, or else a little of what others leave lying.

        None: wait for what flies, it may bring candidates back, and a listing made now would miss those.
        """
        if self.store.tiers is not self._priority_index.tiers:
            self._priority_index.adopt(self.store.tiers)
        if self._selector is not None and self._selector.undecided:
            await self._decide(self._selector, generation)
        level = self._priority_index.plain
        ripe, self._ripe, self.taking_over = self._ripe, False, False
        if level is None:
            return await self._look_by_urgency(limit, generation, ripe=ripe)
        if not level.must_list:
            places = self._pop(level, limit)
            if places:
                return places
            if self._demand.flying:
                return None
            if ripe and (places := await self._take_over(level, limit, generation)):
                return places
        if not (level.must_list or self._demand.asking) and self._watch.armed and level.seen_all:
            return []
        places = await self._list_lanes(level, limit, generation)
        return None if not places and self._demand.flying else places  # what flies is for some of those who ask

    async def _decide(self, selector: FilterSelector, generation: int) -> None:
        """Find out for whom items are that have been heard of."""
        heard = await selector.heard(generation)
        if heard is None:
            self._priority_index.must_list()
        for place in heard or ():
            self._priority_index.of(place).backlog.hear(place, self._clock.monotonic())

    async def _look_by_urgency(self, limit: int, generation: int, *, ripe: bool) -> list[str] | None:
        """Return what to claim next of the most urgent level that has something."""
        above: list[PriorityLevel] = []
        empty: set[PriorityLevel] | None = None
        for level in self._priority_index:
            places = [] if level.must_list else self._pop(level, limit)
            if not places and ripe and not (level.must_list or self._demand.flying):
                places = await self._take_over(level, limit, generation)
            if not places and not self._is_quiet(level):
                if empty is None:
                    empty = await self._skim(
                        [one for one in self._priority_index if not self._is_quiet(one)], generation
                    )
                if level not in empty:
                    if self._demand.flying:
                        level.must_list = True
                        return None
                    places = await self._list_lanes(level, limit, generation)
            if not places and empty is not None and level in empty:  # of what is scheduled
                places = self._pop(level, limit) or self._of_others(level, limit)
            if places:
                return await self._guard(above, places, generation)
            above.append(level)
        return None if self._demand.flying else []

    def _is_quiet(self, level: PriorityLevel) -> bool:
        """Whether there is nothing more on a level, and something that comes would be heard."""
        if level.must_list or not level.seen_all or self._demand.asking:
            return False
        return self._watch.armed or (level.watched and self._clock.monotonic() < level.look_again)

    async def _guard(self, above: list[PriorityLevel], places: list[str], generation: int) -> list[str]:
        """Listen to the levels that are more urgent than what is about to be worked on, which is returned."""
        unwatched = [level for level in above if not level.watched]
        if unwatched and not self._watch.armed:
            try:
                for level in unwatched:
                    await level.watch(self._zookeeper, self.store.paths, self._on_urgent)
                empty = await self._skim(unwatched, generation)
                for level in unwatched:
                    level.must_list = level.must_list or level not in empty
            except BaseException:
                self._priority_index.put_back(places)
                raise
        return places

    def _on_urgent(self, event: WatchEvent) -> None:
        level = self._priority_index.of(
            event.path if event.path.rpartition("/")[2].startswith("item-") else f"{event.path}/-"
        )
        level.count_event(self._clock.monotonic())
        self._watch.pass_on(event)

    async def _skim(self, priority_index: Sequence[PriorityLevel], generation: int) -> set[PriorityLevel]:
        """Tell which of these have nothing at all, without listing any.

        Those need not be listed, unless something has been heard after the server had looked.
        """
        began = self._clock.monotonic()
        unlisted = [level for level in priority_index if level.must_list]
        empty: set[PriorityLevel] = set()
        for level in priority_index:
            level.must_list = False
        try:
            empty = await self._empty_of(priority_index, generation)
        finally:
            for level in unlisted:
                level.must_list = level.must_list or level not in empty
        now = self._clock.monotonic()
        for level in empty:
            level.seen_empty(now, now - began)
        return empty

    async def _empty_of(self, priority_index: Sequence[PriorityLevel], generation: int) -> set[PriorityLevel]:
        lanes = [(level, self.store.paths.at(lane)) for level in priority_index for lane in level.lanes]
        empty = set(priority_index)
        for start in range(0, len(lanes), SKIM):
            page = lanes[start : start + SKIM]
            queue, nodes = await asyncio.gather(
                self._zookeeper.exists(self.store.paths.base, generation=generation),
                self._zookeeper.read_many([path for _, path in page], generation=generation),
            )
            if queue is None or queue.version != self._version:
                raise ReopenError
            for (level, _), node in zip(page, nodes, strict=True):
                if node is None:
                    raise ReopenError
                if node.stat.num_children:
                    empty.discard(level)
        return empty

    def _pop(self, level: PriorityLevel, limit: int) -> list[str]:
        while places := level.backlog.pop(limit, self.held.__contains__, self._clock.monotonic()):
            heads = self._heads(places)
            if heads:
                return heads
        return []

    def _heads(self, places: list[str]) -> list[str]:
        return places if self._groups is None else self._groups.heads(places)

    async def _list_lanes(self, level: PriorityLevel, limit: int, generation: int) -> list[str]:
        """List one lane of a level after the other, until one has something for this consumer."""
        began = self._clock.monotonic()
        shards = level.tier.shard_lanes
        if self._among_many and not self._watch.armed:
            await self._watch.arm(scheduled=self.store.config.scheduled, locks=self.store.dialect is not None)
            self._priority_index.must_list()  # what came to the others before is not told
        level.must_list = level.seen_all = False  # lanes behind one that has something wait until that is empty
        try:
            for _ in shards:
                level.last_shard = (level.last_shard + 1) % len(shards)
                for lane in shards[level.last_shard]:
                    await self._list(level, lane, generation)
                    places = self._pop(level, limit)
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
        return self._of_others(level, limit)

    def _of_others(self, level: PriorityLevel, limit: int) -> list[str]:
        """Return of what lies for other consumers: whatever there is to who asks, else what they leave lying."""
        backlog = level.backlog
        if self._demand.asking:
            found = self._heads(backlog.take_of_others(limit, self.held.__contains__))
            if found:
                level.must_list = True
            return found
        stolen = self._heads(backlog.steal(self.held.__contains__, self._clock.monotonic()))
        backlog.put_back(stolen[limit:])  # for the next batches
        self.stealing = bool(stolen)
        return stolen[:limit]

    async def _take_over(self, level: PriorityLevel, limit: int, generation: int) -> list[str]:
        """Return a little of what others leave lying, as the watches tell."""
        if not self._watch.armed or not level.seen_all or self._demand.asking:
            return []
        places = await self._left_lying.take_over(level.backlog, limit, generation)
        level.must_list = level.must_list or places is None
        taken = self._heads(places or [])
        self.taking_over, self.stealing = bool(taken), False
        return taken

    async def _list(self, level: PriorityLevel, lane: str, generation: int) -> None:
        paths, backlog = self.store.paths, level.backlog
        self.stealing = self.taking_over = False
        self._gone = set()
        self._doubts.clear()
        backlog.begin_listing(lane)
        try:
            consumers = await self._zookeeper.children(paths.consumers, generation=generation)
            # Other nodes' consumers are registered, too: what only this one takes is left to none of them.
            takes = self.store.takes
            share = await self._registration.share(consumers, generation)
            self._priority_index.reshare(share if takes is None else Partition())
            plain = (
                self._groups is None
                and self._selector is None
                and self._batch_visibility is None
                and self.store.dialect is None
            )
            collector: Callable[[], Dealt | Matching] = partial(backlog.deal, lane, takes) if plain else Matching
            listed, locks, queue = await asyncio.gather(
                self._zookeeper.children_into(paths.at(lane), collector, generation=generation),
                self._zookeeper.children(paths.locks, generation=generation),
                self._zookeeper.exists(paths.base, generation=generation),
            )
            if queue is None or queue.version != self._version:
                raise ReopenError  # there may be lanes that are not known here, or what this does not look for yet
            if not self._warned:
                self._warned = warn_of_length(self.store.name, lane, listed.size, self._zookeeper.max_request)
            names = await self._for_this_one(listed.names, generation) if isinstance(listed, Matching) else []
            # What was settled while the lists were under way may stand in them as if it were free.
            locked = {one for lock in locks if (one := paths.lock_of(lock)) is not None} | self._gone
            if isinstance(listed, Dealt):
                backlog.fill_dealt(lane, listed, locked, self._clock.monotonic())
                return
            if self._batch_visibility is not None:
                names = self._batch_visibility.of_listing(names, locked)
            backlog.fill(lane, names, locked, self._clock.monotonic())
        finally:
            self._gone = None

    async def _for_this_one(self, names: list[str], generation: int) -> list[str]:
        """Leave out of a listing what is no item, and what this consumer does not take."""
        if self.store.dialect is not None:
            names = self._doubts.without_gone(filter(self.store.dialect.is_item, names))
        if (takes := self.store.takes) is not None:
            names = [name for name in names if takes(name)]
        return names if self._selector is None else await self._selector.of_listing(names, generation)

    async def listen(self) -> None:
        """Hear from now on of what comes, so that nothing need be listed for it."""
        if not self._watch.armed:
            await self.rest()

    async def rest(self) -> None:
        """Listen; then wait for something to happen."""
        self._last_idle = self._clock.monotonic()
        if self._watch.armed and self._watch.scheduled != self.store.config.scheduled:
            self._disarm()
        if not self._watch.armed:
            self.wakeup.clear()
            await self._watch.arm(
                scheduled=self.store.config.scheduled, locks=self._groups is not None or self.store.dialect is not None
            )
            if self._groups is not None:
                self._groups.watch(armed=True)
            self._priority_index.unwatch()
            self._priority_index.must_list()
            self._must_list_due = self._later.must_look = True
            return
        now = self._server_clock.now()
        waits = [
            max(0.0, (due - now) / 1000)
            for due in (self._timers.next, self._later.next, self._priority_index.next_due)
            if due is not None
        ]
        self._mind_others()
        await self.pause(min(waits, default=None))
        self._last_idle = self._clock.monotonic()
        steal = self._priority_index.next_steal()  # most are gone by now: their own consumers were quick enough
        self._ripe = steal is not None and self._last_idle >= steal

    async def linger(self, wanted: Callable[[], bool]) -> None:
        """Wait for the bell while nobody waits for anything; take the watches off when that lasts."""
        armed = self._watch.armed or any(level.watched for level in self._priority_index)
        linger, since = FILTERED_LINGER if self._among_many else WATCH_LINGER, self._clock.monotonic()
        await self.pause(linger if armed else None)
        # What would have to be listed again, or rings between any two messages of a group, is not short of work.
        goes_on = self._among_many or self._groups is not None
        if armed and not wanted() and not (goes_on and self._clock.monotonic() - since < linger):
            self.disarm()

    async def pause(self, limit: float | None) -> None:
        """Wait for the bell, ``limit`` seconds at the most."""
        timer = None if limit is None else self._clock.call_later(limit, self.wakeup.set)
        try:
            await self.wakeup.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self.wakeup.clear()
