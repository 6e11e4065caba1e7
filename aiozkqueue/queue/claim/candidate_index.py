"""The candidates that one session knows: the results of listings, and later reports by timers, takers and watches.

`discovery` and `watched_index` fill it. A take gets its candidates here as long as some are listed and nothing else
has to happen first.
"""

from __future__ import annotations

import asyncio
import enum
from functools import partial
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import ConfigConflictError
from aiozkqueue.layout import ItemRef, candidate_id_at, name_at
from aiozkqueue.queue.candidates.batches import BatchVisibility
from aiozkqueue.queue.candidates.delay import DelayedIndex
from aiozkqueue.queue.candidates.filters import FilterSelector
from aiozkqueue.queue.candidates.foreign import Doubts
from aiozkqueue.queue.candidates.groups import GroupIndex, is_group
from aiozkqueue.queue.candidates.partition import LAST_WAIT
from aiozkqueue.queue.candidates.priorities import PriorityIndex
from aiozkqueue.queue.candidates.watches import Timers
from aiozkqueue.queue.state.snapshot import NO_REVISION

from .registration import Registration
from .work_stealing import StealTimer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aiozkqueue.layout import Condition
    from aiozkqueue.queue.candidates.priorities import PriorityLevel
    from aiozkqueue.queue.candidates.watches import QueueWatch
    from aiozkqueue.queue.state.snapshot import Revision
    from aiozkqueue.runtime.clock import Clock, Timer

    from .services import ClaimServices

#: Seconds after which messages that this user may not read are tried again: ZooKeeper does not report ACL changes.
SET_ASIDE = 300.0
#: Seconds between searches for timed locks of other sessions in a session that is never idle.
DUE_LISTING = 1.0
#: Other consumers' items that are claimed in one request: more than one consumer may want them.
STOLEN_TOGETHER: Final = 2
#: A consumer with filters keeps its watch instead of listing again when a listing has this many items for others.
MANY_REFUSED = 1000


class Origin(enum.Enum):
    """The share that the last candidates belong to."""

    OWN = enum.auto()
    STOLEN = enum.auto()
    """Other consumers' items, found by a listing."""
    TAKEN_OVER = enum.auto()
    """Other consumers' items, found by watches and reads of their locks."""


class _Aside:
    """Locks that are not tried again for a while. ``retry`` is called when the time has passed."""

    __slots__ = ("_clock", "_retry", "_timer", "locks")

    def __init__(self, clock: Clock, retry: Callable[[], None]) -> None:
        self._clock = clock
        self._retry = retry
        self._timer: Timer | None = None
        self.locks: set[str] = set()

    def add(self, locks: Iterable[str]) -> None:
        """Add locks."""
        self.locks.update(locks)
        if self.locks and self._timer is None:
            self._timer = self._clock.call_later(SET_ASIDE, self._retry)

    def clear(self) -> list[str]:
        """Remove all, and stop the timer; return those that were there."""
        locks, self.locks = list(self.locks), set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return locks


class CandidateIndex:
    """The candidates of a queue that one session knows. ``wakeup`` is set when there may be some."""

    watch: QueueWatch
    """The watches on the queue; see `WatchedIndex`."""

    def __init__(self, services: ClaimServices, condition: Condition | None) -> None:
        state, clock = services.state, services.clock
        self.state = state
        self.registration: Registration = Registration(services, condition)
        """The session's entry as a consumer."""
        self.wakeup: asyncio.Event = asyncio.Event()
        self.revision: Revision = NO_REVISION
        """The revision of the queue's configuration for which candidates are chosen."""
        self.origin: Origin = Origin.OWN
        self.held: set[str] = set()
        """The item ids and groups that this session has locked or is about to lock."""
        # Held locks that a watch has reported on, with the item's current place: "" if that event was missed, None if
        # the place does not matter.
        self._reported: dict[str, str | None] = {}
        self._clock = clock
        self.selector: FilterSelector | None = None if condition is None else FilterSelector(condition, state.tags)
        self.levels: PriorityIndex = PriorityIndex(state.snapshot.tiers, partial(state.new_backlog, services.random))
        self.timers: Timers = Timers()
        self.delayed: DelayedIndex = DelayedIndex(services.zookeeper, state, clock)
        self.groups: GroupIndex | None = None
        self.batch_visibility: BatchVisibility | None = None
        self.doubts: Doubts = Doubts()  # only for another program's items
        self.stealing: StealTimer = StealTimer(self.levels, clock, self.held.__contains__, self.wakeup)
        self._gone: set[str] | None = None  # items that ended while a listing is running
        self._aside = _Aside(clock, self._retry_aside)

    # -- called by the dispatcher

    def ready(self, generation: int) -> bool:
        """Whether candidates can be taken before anything else: no setting has changed, and no moment may have come."""
        state, timers = self.state, self.timers
        if not state.ready or self.revision != state.snapshot.revision or self.registration.generation != generation:
            return False
        config = state.snapshot.config
        if config.paused or config.scheduled or state.dialect is not None:
            return False
        if timers.must_list or timers.next is not None:
            return False
        return self.watch.armed or self._clock.monotonic() - timers.listed_at <= DUE_LISTING

    def adopt_configuration(self) -> bool:
        """Adopt the queue's configuration; return whether it changed. Raises: ConfigConflictError: filters, order."""
        snapshot = self.state.snapshot
        if self.revision == snapshot.revision:
            return False
        config = snapshot.config
        if self.selector is not None and config.grouped:
            # The old revision stays recorded, so the next request is refused too.
            msg = (
                f"queue {self.state.name!r} delivers its messages in order, within a group or in total; "
                "take them without filters: a message that does not match would block those behind it"
            )
            raise ConfigConflictError(msg)
        self.revision = snapshot.revision
        self.levels.adopt(snapshot.tiers)
        self.relist()  # the omitted items may count now
        if not config.scheduled:
            self.delayed.clear()  # the queue was created again
        if config.staged and self.batch_visibility is None:
            self.batch_visibility = BatchVisibility()
            self.levels.clear()  # events from before batches were considered
            self.delayed.clear()
        if self.groups is not None or config.grouped:
            self.disarm()
            self.groups = GroupIndex(config) if config.grouped else None
            self.levels.reset_groups(self.groups)
        return True

    def start_over(self) -> None:
        """Forget everything: a new ZooKeeper session begins."""
        self.levels.clear()
        self.doubts.clear()
        self.revision = NO_REVISION
        self.delayed.clear()
        if self.selector is not None:
            self.selector.start_over()
        self.forget_aside()
        self.drop_held(list(self.held))
        self.timers.must_list = True

    async def next(self, limit: int) -> list[str]:
        """Return the candidates of this consumer's share that come next, if no search of the server comes before.

        A queue with priorities needs one: a more urgent message may have been put.
        """
        level = self.levels.plain
        if level is None or level.must_list or (self.selector is not None and self.selector.undecided):
            return []
        if self.origin is Origin.TAKEN_OVER:
            self.origin = Origin.OWN
        places = await self.pop(level, limit)
        if places:
            self.stealing.stale_due = False
        return places

    async def pop(self, level: PriorityLevel, limit: int) -> list[str]:
        """Return the next candidates of a level. Other tasks run while many names are passed over."""
        while True:
            places = level.backlog.pop(limit, self.held.__contains__, self._clock.monotonic())
            heads = places if self.groups is None else self.groups.heads(places)
            if heads or not (places or level.backlog.unfinished):
                return heads
            await asyncio.sleep(0)

    def heads(self, places: list[str]) -> list[str]:
        """Return the candidates, and of each group only its oldest item."""
        return places if self.groups is None else self.groups.heads(places)

    async def listed(self, limit: int) -> list[str]:
        """Return the candidates to claim next, of this consumer's share, of those that are listed already."""
        level = self.levels.plain
        return [] if level is None or level.must_list else await self.pop(level, limit)

    def batch_limit(self) -> int | None:
        """Return how many of the last candidates to claim in one request; None: all of them."""
        level = self.levels.plain
        if level is None or self.state.dialect is not None:
            return None
        if self.origin is not Origin.OWN:
            return STOLEN_TOGETHER
        return None if self.levels.share.alone else level.backlog.batch_limit(self._clock.monotonic())

    @property
    def watched(self) -> bool:
        """Whether a watch reports changes of the queue, or of one of its priorities."""
        if self.watch.armed:
            return True
        plain = self.levels.plain
        return any(level.watched for level in self.levels) if plain is None else plain.watched

    @property
    def keeps_watch(self) -> bool:
        """Whether listing the queue again costs more than watching it, because most of its items are for others.

        In a queue that another program also consumes this is always so: watches report its locks and more urgent items.
        """
        return self.state.dialect is not None or (self.selector is not None and self.selector.refused > MANY_REFUSED)

    def disarm(self) -> None:
        """Remove the watches on the queue."""
        self.watch.disarm()
        self.stealing.cancel()
        if self.groups is not None:
            self.groups.watch(armed=False)

    def unwatch(self) -> None:
        """Remove all watches, those of single priorities too."""
        self.disarm()
        self.levels.unwatch()

    @property
    def alone(self) -> bool:
        """Whether no other session consumes this queue."""
        return self.levels.share.alone

    @property
    def has_more(self) -> bool:
        """Whether there are listed candidates of this consumer's own share."""
        return any(level.backlog.has_more for level in self.levels)

    def lock_id(self, place: str) -> str:
        """Return the lock id of the item at a place."""
        name = name_at(place)
        return self.state.candidate_id(name) if self.groups is None else self.groups.lock_id(name)

    def lock_ids(self, places: Sequence[str]) -> list[str]:
        """Return the lock ids of places that are known to hold items."""
        if self.groups is None and self.state.dialect is None:
            return [candidate_id_at(place) for place in places]
        return [self.lock_id(place) for place in places]

    def split_groups(self, places: list[str]) -> tuple[list[str], list[str]]:
        """Split candidates into the oldest items of groups and the items without a group."""
        if self.groups is None:
            return [], places
        heads = {place: None for place in places if is_group(self.lock_id(place))}
        return list(heads), [place for place in places if place not in heads]

    def members(self, group: str, limit: int) -> list[str]:
        """Return the places of a group's oldest items."""
        return [] if self.groups is None else self.groups.candidates(group, limit)

    def deleted(self, place: str) -> None:
        """Record that an item of a group no longer exists."""
        if self.groups is not None:
            self.groups.deleted(place)

    def note_gone(self, items: Iterable[str]) -> None:
        """Record that no item was found under these locks of ours.

        The locks are being removed, and their removal must not wake this session.
        """
        for item in items:
            if item in self._reported:
                self.levels.must_list()  # it has returned since, under the same id
            elif self.state.dialect is not None:
                self.doubts.gone(item)

    def add_held(self, locks: Iterable[str]) -> None:
        """Record locks that are about to be created."""
        for lock in locks:
            self.held.add(lock)
            self._reported.pop(lock, None)

    def drop_held(self, locks: Iterable[str]) -> None:
        """Record locks that were not created, or are not kept."""
        if aside := self._aside.locks:
            locks = [lock for lock in locks if lock not in aside]
        for lock in locks:
            self.held.discard(lock)
            self._reported.pop(lock, None)

    def set_aside(self, locks: Iterable[str]) -> None:
        """Stop trying these locks for a while: their items are unreadable, or attempts at them cannot be counted."""
        self.held.update(locks)
        self._aside.add(locks)

    def _retry_aside(self) -> None:
        self.drop_held(self._aside.clear())
        self.relist()
        self.wakeup.set()

    def forget_aside(self) -> None:
        """Forget which locks were set aside, and stop the timer."""
        self._aside.clear()

    def contended(self, lock: str) -> None:
        """Record that another session holds a lock that this one tried to create.

        A watch reports the end of a group's lock. It may have done so already: watches are handled between the refusal
        and this call.
        """
        if lock in self._reported:
            self.levels.must_list()
            self.delayed.must_refresh = True
        elif is_group(lock) or self.state.dialect is not None or self.origin is Origin.TAKEN_OVER:
            self.levels.lock(lock)

    def group_settled(self, group: str, *, locked: bool) -> None:
        """Record that a group's lock is no longer ours.

        Any session may take the rest of the group, this one included, unless the group is ``locked`` by another lock.
        """
        self.settled(group, gone=locked)
        if locked:
            self.levels.lock(group)
        else:
            self.levels.unlock(group)
            self._try_group(group)
        self.wakeup.set()

    def _try_group(self, group: str) -> None:
        """Try the oldest item of a group, or leave it to the consumer whose share it is."""
        if self.groups is None or group in self.held or self.levels.is_locked(group):
            return
        head = self.groups.head(group)
        if head is not None:
            backlog = self.levels.of(head).backlog
            self._wake_or_wait(own=backlog.try_later(head, self._clock.monotonic()))

    def _wake_or_wait(self, *, own: bool) -> None:
        """Wake up for a candidate of this consumer's own share; for another's, only when it may be stolen."""
        if own:
            self.wakeup.set()
        else:
            self.stealing.schedule()

    def relist(self) -> None:
        """List the queue again before anything else is claimed."""
        self.levels.must_list()
        self.delayed.must_refresh = True

    def leave_to_peers(self, places: Sequence[str]) -> None:
        """Leave candidates to the consumers whose share they are, until the next search for items to steal."""
        for place in places:
            self.levels.of(place).backlog.leave_to_peers([place], self._clock.monotonic() - LAST_WAIT)

    def put_back(self, places: Sequence[str]) -> None:
        """Return candidates to the front, to be tried next."""
        self.levels.put_back(places)

    def put_last(self, places: Sequence[str]) -> None:
        """Return candidates that other consumers work on to the end."""
        self.levels.put_last(places)

    def begin_listing(self) -> set[str]:
        """Note the ids of our items that end from now on, and return their set: a listing may show them as free."""
        self._gone = set()
        return self._gone

    def end_listing(self) -> None:
        """Stop noting them."""
        self._gone = None

    def settled(self, message_id: str, *, gone: bool, place: str | None = None) -> None:
        """Record that a lock of ours has ended, and whether the item at ``place`` is gone too.

        The message may be elsewhere by then: a dead letter keeps its id when it is redriven. Events about an id that
        counts as held are processed only here.
        """
        if self.groups is not None:
            self.groups.ended += 1
            if self.groups.blocked:  # maybe by this lock, of an earlier rule
                self.on_relist()
        if message_id not in self._aside.locks:
            self.held.discard(message_id)
        reported = self._reported.pop(message_id, None)
        if not gone:
            return
        if reported is None or reported == place or message_id in self.held:
            if self._gone is not None:
                self._gone.add(message_id)
        elif reported:
            lane, name = ItemRef.parse(reported)
            self._add_singles(lane, {name: message_id})
        else:
            self.relist()
            self.wakeup.set()

    def _add_singles(self, lane: str, ids: dict[str, str]) -> None:
        """Add the items that this consumer may take, by name with their ids.

        A watch reported them; they have no group and are not ours.
        """
        if (accepts := self.state.snapshot.accepts) is not None:
            ids = {name: message_id for name, message_id in ids.items() if accepts(name)}
        if (selector := self.selector) is not None:
            ids = {
                name: message_id
                for name, message_id in ids.items()
                if selector.matches_reported(ItemRef(lane, name).path)
            }
            if selector.undecided:
                self.wakeup.set()
        if not ids:
            return
        if self.state.dialect is not None:
            for name in ids:
                self.doubts.found(name)
        level = self.levels.of(ItemRef(lane, next(iter(ids))).path)
        own = level.backlog.add_reported(lane, ids, self._clock.monotonic())
        if level.backlog.full:
            level.must_list = True  # an item that was not kept is not reported again
        if own:
            self.wakeup.set()
        if own < len(ids):
            self.stealing.schedule()

    def on_relist(self) -> None:
        """See `WatchListener`."""
        self.levels.must_list()
        self.timers.must_list = self.delayed.must_refresh = True
        if self.groups is not None:
            self.groups.missed()
        self.wakeup.set()

    def on_timed_lock(self, due: int, message_id: str) -> None:
        """See `WatchListener`."""
        self.timers.add(due, message_id)
        self.wakeup.set()
