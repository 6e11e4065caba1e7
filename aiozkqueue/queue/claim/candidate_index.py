"""What is known of candidates: what was found, and what watches, timers and takers have told since. No I/O."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.layout import MalformedError, id_at
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
    from aiozkqueue.queue.runtime.clock import Clock, ServerClock, Timer
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import ZooKeeper

#: Seconds after which messages are tried again that this user may not read: nothing tells when an ACL has changed.
SET_ASIDE = 300.0


class CandidateIndex:
    """What one session knows of a queue's candidates. ``wakeup`` rings when there may be some.

    What watches tell comes in by the methods of `WatchListener`; `CandidateSource` adds how candidates are looked for.
    """

    def __init__(
        self,
        store: QueueState,
        zookeeper: ZooKeeper,
        *,
        clock: Clock,
        server_clock: ServerClock,
        random: Random,
        condition: Condition | None,
    ) -> None:
        self.store = store
        self.wakeup: asyncio.Event = asyncio.Event()
        self.taking_over: bool = False
        """Whether what was found last is other consumers', by what the watches tell and a look at its locks."""
        self.held: set[str] = set()
        """What this session has locked, or is about to: ids of items, and groups."""
        # Of those, what a watch has told something of: where it lies now, "" where that has been missed, None where it
        # does not matter.
        self._stirred: dict[str, str | None] = {}
        self._clock = clock
        self._server_clock = server_clock
        self._selector = None if condition is None else FilterSelector(condition, store.tags)
        self._priority_index = PriorityIndex(store.tiers, partial(store.backlog, random))
        self._timers = Timers()
        self._later = DelayedIndex(zookeeper, store, clock)
        self._groups: GroupIndex | None = None
        self._batch_visibility: BatchVisibility | None = None
        self._must_list_due = True
        self._gone: set[str] | None = None  # what was settled while a listing is under way
        self._doubts = Doubts()  # of items of another program
        self._steal_timer: Timer | None = None
        self._aside: set[str] = set()  # of what is held, what is not tried again for a while
        self._aside_timer: Timer | None = None

    @property
    def alone(self) -> bool:
        """Whether no other session takes from this queue."""
        return self._priority_index.share.alone

    @property
    def grouped(self) -> bool:
        """Whether messages may be locked by groups."""
        return self._groups is not None

    def lock_id(self, place: str) -> str:
        """What the item at a place is locked by."""
        name = place.rpartition("/")[2]
        return self.store.item_id(name) if self._groups is None else self._groups.lock_id(name)

    def lock_ids(self, places: Sequence[str]) -> list[str]:
        """What the items at places are locked by, which were found to be items before."""
        if self._groups is None and self.store.dialect is None:
            return [id_at(place) for place in places]
        return [self.lock_id(place) for place in places]

    def apart(self, places: list[str]) -> tuple[list[str], list[str]]:
        """Split what is to be claimed: the oldest items of groups, and items that are in no group."""
        if self._groups is None:
            return [], places
        heads = {place: None for place in places if is_group(self.lock_id(place))}
        return list(heads), [place for place in places if place not in heads]

    def members(self, group: str, limit: int) -> list[str]:
        """Return the places of a group's oldest items."""
        return [] if self._groups is None else self._groups.candidates(group, limit)

    def deleted(self, place: str) -> None:
        """An item of a group is known to be gone."""
        if self._groups is not None:
            self._groups.deleted(place)

    def ghosts(self, items: Iterable[str]) -> None:
        """Nothing was found under locks of ours. They are being removed, and the end of none is to wake us."""
        for item in items:
            if item in self._stirred:
                self._priority_index.must_list()  # it has come back since, under the same id
            elif self.store.dialect is not None:
                self._doubts.gone(item)

    def begin(self, locks: Iterable[str]) -> None:
        """Locks are about to be made."""
        for lock in locks:
            self.held.add(lock)
            self._stirred.pop(lock, None)

    def end(self, locks: Iterable[str]) -> None:
        """Locks have not been made, or are not kept."""
        if self._aside:
            locks = [one for one in locks if one not in self._aside]
        for lock in locks:
            self.held.discard(lock)
            self._stirred.pop(lock, None)

    def set_aside(self, locks: Iterable[str]) -> None:
        """Try these no more for a while: what they lock may not be read, or its attempts not counted."""
        self.held.update(locks)
        self._aside.update(locks)
        if self._aside and self._aside_timer is None:
            self._aside_timer = self._clock.call_later(SET_ASIDE, self._try_aside)

    def _try_aside(self) -> None:
        aside = list(self._aside)
        self.forget_aside()
        self.end(aside)
        self.relist()
        self.wakeup.set()

    def forget_aside(self) -> None:
        """Mind nothing more that has been set aside."""
        self._aside.clear()
        if self._aside_timer is not None:
            self._aside_timer.cancel()
            self._aside_timer = None

    def contended(self, lock: str) -> None:
        """Somebody else holds a lock that was about to be made. Of a group it will be heard when it goes.

        It may have been heard already: the watches go on between the refusal and whoever is told of it.
        """
        if lock in self._stirred:
            self._priority_index.must_list()
            self._later.must_look = True
        elif is_group(lock) or self.store.dialect is not None or self.taking_over:
            self._priority_index.lock(lock)

    def group_settled(self, group: str, *, locked: bool) -> None:
        """The lock of a group is ours no more; what is left of it may be taken, by us too, unless it is locked."""
        self.settled(group, gone=locked)
        if locked:
            self._priority_index.lock(group)
        else:
            self._priority_index.unlock(group)
            self._try_group(group)
        self.wakeup.set()

    def _try_group(self, group: str) -> None:
        """Have the oldest item of a group tried, by us or by whoever's share it is."""
        if self._groups is None or group in self.held or self._priority_index.is_locked(group):
            return
        head = self._groups.head(group)
        if head is not None:
            backlog = self._priority_index.of(head).backlog
            self._ring_or_wait(own=backlog.try_later(head, self._clock.monotonic()))

    def _heard_member(self, place: str, groups: GroupIndex) -> bool:
        """Take an item that a watch told of, if it is in a group."""
        group = groups.lock_id(place.rpartition("/")[2])
        if not is_group(group):
            return False
        heard = groups.hear(place)
        if heard is Heard.UNTRACKED:
            self._priority_index.of(place).must_list = True
            self.wakeup.set()
        elif group in self.held:
            if heard is Heard.KNOWN:
                self._stirred.setdefault(group)
            self.wakeup.set()  # whoever has it may want more of it
        else:
            if heard is Heard.KNOWN:
                self._priority_index.unlock(group)  # set by whoever took its lock off
            if heard is Heard.KNOWN or groups.head(group) == place:
                self._try_group(group)
        return True

    def _ring_or_wait(self, *, own: bool) -> None:
        """Ring for a candidate of this consumer's own; for another's, only when it is left lying."""
        if own:
            self.wakeup.set()
        else:
            self._mind_others()

    def _mind_others(self) -> None:
        """Have the bell rung when what others leave lying may be taken: most is gone by then, and wakes nobody."""
        if self._steal_timer is None and (steal := self._priority_index.next_steal()) is not None:
            wait = max(0.0, steal - self._clock.monotonic())
            self._steal_timer = self._clock.call_later(wait, self._look_at_others)

    def _look_at_others(self) -> None:
        self._steal_timer = None
        steal = self._priority_index.next_steal()
        if steal is not None and steal <= self._clock.monotonic():
            self.wakeup.set()
        else:
            self._mind_others()

    def _mind_others_no_more(self) -> None:
        if self._steal_timer is not None:
            self._steal_timer.cancel()
            self._steal_timer = None

    def relist(self) -> None:
        """List again before anything else is claimed."""
        self._priority_index.must_list()
        self._later.must_look = True

    def leave(self, places: Sequence[str]) -> None:
        """Leave candidates to the others whose they are, until the next look at what these leave lying."""
        for place in places:
            self._priority_index.of(place).backlog.leave([place], self._clock.monotonic() - LAST_WAIT)

    def put_back(self, places: Sequence[str]) -> None:
        """Take candidates back, to be tried next."""
        self._priority_index.put_back(places)

    def put_last(self, places: Sequence[str]) -> None:
        """Take candidates back that others work on."""
        self._priority_index.put_last(places)

    def settled(self, message_id: str, *, gone: bool, place: str | None = None) -> None:
        """A lock of ours is gone, and the item at ``place`` too or not.

        By then the message may lie elsewhere: a dead letter keeps its id when somebody drives it back. What is told of
        it while the id counts as held is minded only here.
        """
        if message_id not in self._aside:
            self.held.discard(message_id)
        heard = self._stirred.pop(message_id, None)
        if not gone:
            return
        if heard is None or heard == place or message_id in self.held:
            if self._gone is not None:
                self._gone.add(message_id)
        elif heard:
            self._heard_free(heard)
        else:
            self.relist()
            self.wakeup.set()

    def heard_item(self, place: str) -> None:
        """See `WatchListener`."""
        if (
            self._batch_visibility is not None
            and (stage := stage_of(place)) is not None
            and not self._batch_visibility.is_open(stage)
        ):
            if not self._batch_visibility.is_closed(stage):
                self._priority_index.of(place).must_list = True  # that finds out
                self.wakeup.set()
            return
        try:
            if self._groups is not None and self._heard_member(place, self._groups):
                return
            message_id = self.store.item_id(place.rpartition("/")[2])
        except MalformedError:
            return
        if message_id in self.held:
            self._stirred[message_id] = place
        else:
            self._heard_free(place)

    def _heard_free(self, place: str) -> None:
        """Take an item that a watch told of, which is by itself and not ours already, if it is for this consumer."""
        if self.store.takes is not None and not self.store.takes(place.rpartition("/")[2]):
            return
        if self._selector is not None and not self._selector.hear(place):
            if self._selector.undecided:
                self.wakeup.set()
            return
        if self.store.dialect is not None:
            self._doubts.found(place.rpartition("/")[2])
        level = self._priority_index.of(place)
        if level.backlog.full:
            level.must_list = True  # what is not kept now is not heard of again
        self._ring_or_wait(own=level.backlog.hear(place, self._clock.monotonic()))

    def heard_end(self, place: str) -> None:
        """See `WatchListener`."""
        self._priority_index.of(place).backlog.forget(place)
        if self.store.dialect is not None:
            self._doubts.gone(place.rpartition("/")[2])
        if self._groups is not None:
            with suppress(MalformedError):
                self._groups.deleted(place)
                self._try_group(self.lock_id(place))

    def heard_lock(self, lock: str, *, gone: bool) -> None:
        """See `WatchListener`."""
        if lock in self.held:
            if gone:
                self._stirred.setdefault(lock)
            return
        if self.store.dialect is not None:
            self._heard_foreign(lock, gone=gone)
        if self._groups is None:
            return
        if gone and self._groups.blocked:
            self.heard_bell()
        if not is_group(lock):
            return
        if gone:
            self._priority_index.unlock(lock)
            self._try_group(lock)
        else:
            self._priority_index.lock(lock)

    def _heard_foreign(self, item: str, *, gone: bool) -> None:
        """Another session has locked an item, or has unlocked it: then its item is looked at, if it may be there."""
        if not gone:
            self._priority_index.lock(item)
            return
        self._priority_index.unlock(item)
        if self._doubts.unlocked(item):
            self.wakeup.set()

    def _settle_doubts(self, items: Sequence[str], found: Iterable[bool]) -> None:
        """Take what was seen of items whose locks had ended: whether they are there.

        What a watch has told since then is newer: whoever has locked one again ends that lock, too.
        """
        for item, there in zip(items, found, strict=True):
            if there and not self._priority_index.is_locked(item) and self._doubts.without_gone([item]):
                self.heard_item(f"items/{item}")

    def heard_later(self, place: str, *, gone: bool) -> None:
        """See `WatchListener`."""
        if gone:
            self._later.forget(place)
            self._priority_index.of(place).backlog.forget(place)
            return
        before = self._later.next
        self._later.hear(place, self._server_clock.now())
        if self._later.next != before:
            self.wakeup.set()

    def heard_nothing(self) -> None:
        """See `WatchListener`. A listing that is made now passes by what counts as held."""
        for lock in self.held:
            self._stirred.setdefault(lock, "")
        self.heard_bell()

    def heard_bell(self) -> None:
        """See `WatchListener`."""
        self._priority_index.must_list()
        self._must_list_due = self._later.must_look = True
        if self._groups is not None:
            self._groups.missed()
        self.wakeup.set()

    def heard_due(self, due: int, message_id: str) -> None:
        """See `WatchListener`."""
        self._timers.add(due, message_id)
        self.wakeup.set()
