"""In-memory index of candidates: the results of listings, and later reports by watches, timers and takers. No I/O."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.layout import ItemRef, MalformedError, candidate_id_at, name_at
from aiozkqueue.queue.candidates.batches import stage_of
from aiozkqueue.queue.candidates.delay import DelayedIndex
from aiozkqueue.queue.candidates.filters import FilterSelector
from aiozkqueue.queue.candidates.foreign import Doubts
from aiozkqueue.queue.candidates.groups import GroupIndex, Heard, is_group
from aiozkqueue.queue.candidates.partition import LAST_WAIT
from aiozkqueue.queue.candidates.priorities import PriorityIndex
from aiozkqueue.queue.candidates.watches import Timers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random

    from aiozkqueue.layout import Condition
    from aiozkqueue.queue.candidates.batches import BatchVisibility
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.runtime.clock import Clock, ServerClock, Timer
    from aiozkqueue.zookeeper import ZooKeeper

#: Seconds after which messages that this user may not read are tried again: ZooKeeper does not report ACL changes.
SET_ASIDE = 300.0


class CandidateIndex:
    """The candidates of a queue that one session knows. ``wakeup`` is set when there may be some.

    The methods of `WatchListener` receive what watches report. `CandidateSource` adds the search for candidates.
    """

    def __init__(
        self,
        state: QueueState,
        zookeeper: ZooKeeper,
        *,
        clock: Clock,
        server_clock: ServerClock,
        random: Random,
        condition: Condition | None,
    ) -> None:
        self.state = state
        self.wakeup: asyncio.Event = asyncio.Event()
        self.taking_over: bool = False
        """Whether the last candidates are other consumers' items, found by watches and a look at their locks."""
        self.held: set[str] = set()
        """The item ids and groups that this session has locked or is about to lock."""
        # Held locks that a watch has reported on, with the item's current place: "" if that event was missed, None if
        # the place does not matter.
        self._reported: dict[str, str | None] = {}
        self._clock = clock
        self._server_clock = server_clock
        self._selector = None if condition is None else FilterSelector(condition, state.tags)
        self._priority_index = PriorityIndex(state.snapshot.tiers, partial(state.backlog, random))
        self._timers = Timers()
        self._delayed = DelayedIndex(zookeeper, state, clock)
        self._groups: GroupIndex | None = None
        self._batch_visibility: BatchVisibility | None = None
        self._must_list_due = True
        self._gone: set[str] | None = None  # items that ended while a listing is running
        self._ended = 0  # locks of ours
        self._doubts = Doubts()  # only for another program's items
        self._steal_timer: Timer | None = None
        self._aside: set[str] = set()  # held locks that are not tried again for a while
        self._aside_timer: Timer | None = None

    @property
    def alone(self) -> bool:
        """Whether no other session consumes this queue."""
        return self._priority_index.share.alone

    @property
    def has_more(self) -> bool:
        """Whether there are listed candidates of this consumer's own share."""
        return any(level.backlog.has_more for level in self._priority_index)

    @property
    def grouped(self) -> bool:
        """Whether messages may be locked by groups."""
        return self._groups is not None

    def lock_id(self, place: str) -> str:
        """Return the lock id of the item at a place."""
        name = name_at(place)
        return self.state.candidate_id(name) if self._groups is None else self._groups.lock_id(name)

    def lock_ids(self, places: Sequence[str]) -> list[str]:
        """Return the lock ids of places that are known to hold items."""
        if self._groups is None and self.state.dialect is None:
            return [candidate_id_at(place) for place in places]
        return [self.lock_id(place) for place in places]

    def split_groups(self, places: list[str]) -> tuple[list[str], list[str]]:
        """Split candidates into the oldest items of groups and the items without a group."""
        if self._groups is None:
            return [], places
        heads = {place: None for place in places if is_group(self.lock_id(place))}
        return list(heads), [place for place in places if place not in heads]

    def members(self, group: str, limit: int) -> list[str]:
        """Return the places of a group's oldest items."""
        return [] if self._groups is None else self._groups.candidates(group, limit)

    def deleted(self, place: str) -> None:
        """Record that an item of a group no longer exists."""
        if self._groups is not None:
            self._groups.deleted(place)

    def note_ghosts(self, items: Iterable[str]) -> None:
        """Record that no item was found under these locks of ours.

        The locks are being removed, and their removal must not wake this session.
        """
        for item in items:
            if item in self._reported:
                self._priority_index.must_list()  # it has returned since, under the same id
            elif self.state.dialect is not None:
                self._doubts.gone(item)

    def add_held(self, locks: Iterable[str]) -> None:
        """Record locks that are about to be created."""
        for lock in locks:
            self.held.add(lock)
            self._reported.pop(lock, None)

    def drop_held(self, locks: Iterable[str]) -> None:
        """Record locks that were not created, or are not kept."""
        if self._aside:
            locks = [lock for lock in locks if lock not in self._aside]
        for lock in locks:
            self.held.discard(lock)
            self._reported.pop(lock, None)

    def set_aside(self, locks: Iterable[str]) -> None:
        """Stop trying these locks for a while: their items are unreadable, or attempts at them cannot be counted."""
        self.held.update(locks)
        self._aside.update(locks)
        if self._aside and self._aside_timer is None:
            self._aside_timer = self._clock.call_later(SET_ASIDE, self._retry_aside)

    def _retry_aside(self) -> None:
        aside = list(self._aside)
        self.forget_aside()
        self.drop_held(aside)
        self.relist()
        self.wakeup.set()

    def forget_aside(self) -> None:
        """Forget which locks were set aside, and stop the timer."""
        self._aside.clear()
        if self._aside_timer is not None:
            self._aside_timer.cancel()
            self._aside_timer = None

    def contended(self, lock: str) -> None:
        """Record that another session holds a lock that this one tried to create.

        A watch reports the end of a group's lock. It may have done so already: watches are handled between the refusal
        and this call.
        """
        if lock in self._reported:
            self._priority_index.must_list()
            self._delayed.must_look = True
        elif is_group(lock) or self.state.dialect is not None or self.taking_over:
            self._priority_index.lock(lock)

    def group_settled(self, group: str, *, locked: bool) -> None:
        """Record that a group's lock is no longer ours.

        Any session may take the rest of the group, this one included, unless the group is ``locked`` by another lock.
        """
        self.settled(group, gone=locked)
        if locked:
            self._priority_index.lock(group)
        else:
            self._priority_index.unlock(group)
            self._try_group(group)
        self.wakeup.set()

    def _try_group(self, group: str) -> None:
        """Try the oldest item of a group, or leave it to the consumer whose share it is."""
        if self._groups is None or group in self.held or self._priority_index.is_locked(group):
            return
        head = self._groups.head(group)
        if head is not None:
            backlog = self._priority_index.of(head).backlog
            self._wake_or_wait(own=backlog.try_later(head, self._clock.monotonic()))

    def _add_member(self, place: str, groups: GroupIndex) -> bool:
        """Handle an item reported by a watch if it is in a group, or has no valid name; return whether it is."""
        try:
            group = groups.lock_id(name_at(place))
        except MalformedError:
            return True
        if not is_group(group):
            return False
        heard = groups.hear(place)
        if heard is Heard.UNTRACKED:
            self._priority_index.of(place).must_list = True
            self.wakeup.set()
        elif group in self.held:
            if heard is Heard.KNOWN:
                self._reported.setdefault(group)
            self.wakeup.set()  # the holder may want more messages of this group
        else:
            if heard is Heard.KNOWN:
                self._priority_index.unlock(group)  # the session that removed the lock set this item's data
            if heard is Heard.KNOWN or groups.head(group) == place:
                self._try_group(group)
        return True

    def _wake_or_wait(self, *, own: bool) -> None:
        """Wake up for a candidate of this consumer's own share; for another's, only when it may be stolen."""
        if own:
            self.wakeup.set()
        else:
            self._schedule_steal()

    def _schedule_steal(self) -> None:
        """Wake up when other consumers' items become due for work stealing.

        Most are gone by then, and wake no consumer.
        """
        if self._steal_timer is None:
            self._wait_for_steal(self._priority_index.no_steal_before)

    def _wait_for_steal(self, moment: float | None) -> None:
        if moment is not None:
            wait = max(0.0, moment - self._clock.monotonic())
            self._steal_timer = self._clock.call_later(wait, self._steal_due)

    @property
    def _may_steal(self) -> bool:
        """Whether other consumers' items may be stolen. A held one does not count: it may be listed as another's."""
        return self._priority_index.may_steal(self.held.__contains__, self._clock.monotonic())

    def _steal_due(self) -> None:
        self._steal_timer = None
        if self._may_steal:
            self.wakeup.set()
        else:
            self._wait_for_steal(self._priority_index.next_steal(self.held.__contains__))

    def _cancel_steal(self) -> None:
        if self._steal_timer is not None:
            self._steal_timer.cancel()
            self._steal_timer = None

    def relist(self) -> None:
        """List the queue again before anything else is claimed."""
        self._priority_index.must_list()
        self._delayed.must_look = True

    def leave(self, places: Sequence[str]) -> None:
        """Leave candidates to the consumers whose share they are, until the next search for items to steal."""
        for place in places:
            self._priority_index.of(place).backlog.leave([place], self._clock.monotonic() - LAST_WAIT)

    def put_back(self, places: Sequence[str]) -> None:
        """Return candidates to the front, to be tried next."""
        self._priority_index.put_back(places)

    def put_last(self, places: Sequence[str]) -> None:
        """Return candidates that other consumers work on to the end."""
        self._priority_index.put_last(places)

    def settled(self, message_id: str, *, gone: bool, place: str | None = None) -> None:
        """Record that a lock of ours has ended, and whether the item at ``place`` is gone too.

        The message may be elsewhere by then: a dead letter keeps its id when it is redriven. Events about an id that
        counts as held are processed only here.
        """
        if self._groups is not None:
            self._ended += 1
            if self._groups.blocked:  # maybe by this lock, of an earlier rule
                self.on_relist()
        if message_id not in self._aside:
            self.held.discard(message_id)
        heard = self._reported.pop(message_id, None)
        if not gone:
            return
        if heard is None or heard == place or message_id in self.held:
            if self._gone is not None:
                self._gone.add(message_id)
        elif heard:
            lane, name = ItemRef.parse(heard)
            self._add_singles(lane, {name: message_id})
        else:
            self.relist()
            self.wakeup.set()

    def on_item(self, place: str) -> None:
        """See `WatchListener`."""
        lane, name = ItemRef.parse(place)
        self.on_items(lane, [name])

    def on_items(self, lane: str, names: list[str]) -> None:
        """See `WatchListener`."""
        if (batches := self._batch_visibility) is not None:
            names = [name for name in names if self._is_visible(ItemRef(lane, name).path, batches)]
        if (groups := self._groups) is not None:
            names = [name for name in names if not self._add_member(ItemRef(lane, name).path, groups)]
        free: dict[str, str] = {}
        for name in names:
            try:
                message_id = self.state.candidate_id(name)
            except MalformedError:
                continue
            if message_id in self.held:
                self._reported[message_id] = ItemRef(lane, name).path
            else:
                free[name] = message_id
        self._add_singles(lane, free)

    def _is_visible(self, place: str, batches: BatchVisibility) -> bool:
        """Whether an item is in no batch, or in one that is open; a listing finds out whether the batch is open."""
        stage = stage_of(place)
        if stage is None or batches.is_open(stage):
            return True
        if not batches.is_closed(stage):
            self._priority_index.of(place).must_list = True
            self.wakeup.set()
        return False

    def _add_singles(self, lane: str, ids: dict[str, str]) -> None:
        """Add the items that this consumer may take, by name with their ids.

        A watch reported them; they have no group and are not ours.
        """
        if (accepts := self.state.snapshot.accepts) is not None:
            ids = {name: message_id for name, message_id in ids.items() if accepts(name)}
        if (selector := self._selector) is not None:
            ids = {name: message_id for name, message_id in ids.items() if selector.hear(ItemRef(lane, name).path)}
            if selector.undecided:
                self.wakeup.set()
        if not ids:
            return
        if self.state.dialect is not None:
            for name in ids:
                self._doubts.found(name)
        level = self._priority_index.of(ItemRef(lane, next(iter(ids))).path)
        own = level.backlog.hear(lane, ids, self._clock.monotonic())
        if level.backlog.full:
            level.must_list = True  # an item that was not kept is not reported again
        if own:
            self.wakeup.set()
        if own < len(ids):
            self._schedule_steal()

    def on_item_deleted(self, place: str) -> None:
        """See `WatchListener`."""
        self._priority_index.of(place).backlog.forget(place)
        if self.state.dialect is not None:
            self._doubts.gone(name_at(place))
        if self._groups is not None:
            with suppress(MalformedError):
                self._groups.deleted(place)
                self._try_group(self.lock_id(place))

    def on_lock(self, lock: str, *, gone: bool) -> None:
        """See `WatchListener`."""
        if lock in self.held:
            if gone:
                self._reported.setdefault(lock)
            return
        if self.state.dialect is not None:
            self._foreign_lock_changed(lock, gone=gone)
        if self._groups is None:
            return
        if gone and self._groups.blocked:
            self.on_relist()
        if not is_group(lock):
            return
        if gone:
            self._priority_index.unlock(lock)
            self._try_group(lock)
        else:
            self._priority_index.lock(lock)

    def _foreign_lock_changed(self, item: str, *, gone: bool) -> None:
        """Record that another session locked or unlocked an item; a read tells whether an unlocked item exists."""
        if not gone:
            self._priority_index.lock(item)
            return
        self._priority_index.unlock(item)
        if self._doubts.unlocked(item):
            self.wakeup.set()

    def _settle_doubts(self, items: Sequence[str], exist: Iterable[bool]) -> None:
        """Add the items that still exist after their locks ended.

        Events since the read are newer. A session that has locked an item again will also end that lock.
        """
        for item, exists in zip(items, exist, strict=True):
            if exists and not self._priority_index.is_locked(item) and self._doubts.without_gone([item]):
                self.on_item(f"items/{item}")

    def on_delayed(self, place: str, *, gone: bool) -> None:
        """See `WatchListener`."""
        if gone:
            self._delayed.forget(place)
            self._priority_index.of(place).backlog.forget(place)
            return
        before = self._delayed.next
        self._delayed.hear(place, self._server_clock.now())
        if self._delayed.next != before:
            self.wakeup.set()

    def on_missed(self) -> None:
        """See `WatchListener`. A listing made now skips items that count as held."""
        for lock in self.held:
            self._reported.setdefault(lock, "")
        self.on_relist()

    def on_relist(self) -> None:
        """See `WatchListener`."""
        self._priority_index.must_list()
        self._must_list_due = self._delayed.must_look = True
        if self._groups is not None:
            self._groups.missed()
        self.wakeup.set()

    def on_timed_lock(self, due: int, message_id: str) -> None:
        """See `WatchListener`."""
        self._timers.add(due, message_id)
        self.wakeup.set()
