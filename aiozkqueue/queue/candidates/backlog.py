"""Candidates to claim: the places of items seen without a lock, oldest first. Pure.

A place is an item's path relative to its queue: ``items/<name>`` or ``lanes/<lane>/<name>``. Names of a listing that
other consumers take first are set aside, and the rest is sorted. A name is parsed only when it is its turn, so the cost
of a deep queue is one hash per name, plus sorting this consumer's own names.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from aiozkqueue.layout import SEQUENCE_DIGITS, ItemRef, MalformedError, candidate_id, is_bundle_at, messages_in, name_at
from aiozkqueue.runtime.strings import Strings

from .collectors import Earliest, FirstNames, ShareCollector, sequence_of
from .partition import FIRST_WAIT, Partition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from random import Random

    from .groups import GroupIndex

#: Candidates kept of a listing; the lane is listed again when these run out.
BACKLOG_LIMIT = 200_000
#: Names of other consumers' items that are kept of a listing, for work stealing.
PEER_LIMIT = 20_000
#: Names of a long listing that are sorted at a time.
REFILL = 4096
#: Listed names that `Backlog.pop` examines at a time: a few milliseconds of work.
PASSED_OVER = 4096
#: Candidates reported by watches that are kept until they are taken.
REPORTED_LIMIT = 10_000
#: Other consumers' items that are examined one by one for stealing; if there are more, a listing is used instead.
STEALABLE_LIMIT = 2_000
#: Seconds after which even a consumer with enough own items takes others' items; each further consumer in line
#: waits as long again.
STALE_AFTER = 0.5
#: The last candidates of a listing, and how many of them are claimed in one request.
LAST_LIMIT = 64
LAST_TOGETHER = 8


class Backlog:
    """The candidates that one consumer may try next."""

    #: The sort key of names, oldest first.
    _order: Callable[[str], Any] = sequence_of

    def __init__(self, random: Random) -> None:
        self._random = random
        self._share = Partition()
        self._offsets: dict[str, int] = {}  # by lane
        self._groups: GroupIndex | None = None
        self._lane = ""
        self._listed: list[str] = []  # names, newest first, so that the oldest is popped
        self._more: Iterator[str] = iter(())  # names after those, oldest first
        self._front: deque[str] = deque()  # places that were put back
        self._reported: deque[str] = deque()  # places reported by watches
        self._locked = Strings()  # ids
        self._freed: set[str] | None = None  # ids whose locks ended while a listing is running
        self._peer_items: dict[str, dict[str, float]] = {}  # by lane: others' items, and when each was first seen
        self._before: dict[str, float] = {}  # the same for the lane being listed, before this listing
        self._dropped_at: float | None = None  # when an item was last reported that is not kept
        self._marks: tuple[int, int] = (0, 0)
        self._examined = 0  # names of the listing
        self._listed_at: float | None = None  # when the lane was listed; None: a claim was refused since then
        self.replaced: list[dict[str, str] | dict[str, None]] = []
        """Everything that listings replaced; it may be released in parts."""
        self.unfinished: bool = False
        """Whether the last `pop` stopped before it had examined all names."""

    def clear(self) -> None:
        """Forget everything."""
        self.forget_listed()
        self._front.clear()
        self._reported.clear()
        self.replaced += self._locked.parts
        self._locked = Strings()
        self._freed = None
        self._peer_items.clear()
        self._before.clear()
        self._dropped_at = None

    def reset_groups(self, groups: GroupIndex | None) -> None:
        """Start again with an index of the queue's groups; None: it has no groups."""
        self.clear()
        self.use_groups(groups)

    def use_groups(self, groups: GroupIndex | None) -> None:
        """Use an index of the queue's groups."""
        self._groups = groups

    def forget_listed(self) -> None:
        """Forget the listed names: the lanes have been seen empty."""
        self._listed.clear()
        self._more = iter(())

    def reshare(self, share: Partition) -> None:
        """Set this consumer's share."""
        self._share = share
        self._offsets.clear()

    def checked(self, began: float) -> None:
        """Record that all lanes were read at a later time than ``began``: items dropped before it have been seen."""
        if self._dropped_at is not None and self._dropped_at < began:
            self._dropped_at = None

    def begin_check(self) -> None:
        """Prepare for a check which lanes hold items: it will find all items reported so far."""
        self._marks = (len(self._front), len(self._reported))

    def seen_empty(self, lanes: Sequence[str], began: float) -> None:
        """Forget the items of lanes that a check found empty, except those reported since it ``began``."""
        self._forget_reported(tuple(f"{lane}/" for lane in lanes))
        for lane in self._peer_items.keys() & lanes:
            items = self._peer_items[lane].items()
            self._peer_items[lane] = {name: since for name, since in items if since >= began}

    def begin_listing(self, lane: str) -> None:
        """Prepare for the listing of a lane: it will contain all items reported so far."""
        self.begin_check()
        self._examined = 0
        if self._groups is not None:
            self._groups.begin_listing(lane)
        self._freed = set()
        self._before, self._peer_items[lane] = self._peer_items.get(lane, {}), {}

    def share_collector(
        self, lane: str, passes: Callable[[str], object] | None = None, *, ordered: bool = False
    ) -> ShareCollector:
        """Return a collector for the names of a lane that are candidates: see `fill`."""
        select = None if self._share.alone else partial(self._own, lane)
        return ShareCollector(select, passes, own_limit=BACKLOG_LIMIT, peer_limit=PEER_LIMIT, ordered=ordered)

    def _own(self, lane: str, names: list[str]) -> list[str]:
        """Return this consumer's own of a lane's names."""
        if self._groups is None:
            return self._share.own(names, self._offset(lane))
        return [name for name in names if self._owns(lane, name)]

    def ordered_collector(self, passes: Callable[[str], object] | None, *, limited: bool) -> Earliest:
        """Return a collector for the names of a lane that are examined in their order: all, or as many as are kept."""
        ordered = self._groups is not None and self._groups.config.ordered
        key = _order_and_name if ordered else self._order
        return Earliest(BACKLOG_LIMIT + 1 if limited else None, passes, key)

    def candidates_among(self, names: list[str]) -> list[str]:
        """Return the candidates among the next names of a listing, in their order: of a group, only the first."""
        if self._groups is None:
            return names
        free = max(0, BACKLOG_LIMIT - self._examined)
        self._examined += len(names)
        return self._groups.collect(names[:free])

    def fill(self, lane: str, shares: ShareCollector, locked: Strings, now: float) -> None:
        """Store the candidates of a listing, and the locked ids."""
        self._drop_seen(lane, locked)
        if self._groups is not None:
            shares.take(self._groups.end_listing(lane, self._locked, whole=self._examined <= BACKLOG_LIMIT))
            if self._groups.blocked:
                shares = self.share_collector(lane)
            if self._groups.replaced is not None:
                self.replaced += self._groups.replaced.parts
        if not self._share.alone:
            self._remember_peer_items(lane, dict.fromkeys(shares.peers.kept(), now), now, busy=shares.own.held > 0)
        self._lane, self._listed_at = lane, now
        self._keep(shares.own)

    def _keep(self, own: Earliest | FirstNames) -> None:
        """Store this consumer's own names of a listing."""
        self._listed, self._more = [], own.in_order()

    def _drop_seen(self, lane: str, locked: Strings) -> None:
        """Forget the places of a lane that were reported before its listing: the listing contains them."""
        self._forget_reported((f"{lane}/",))
        locked -= self._freed or set()
        self.replaced += self._locked.parts
        self._locked, self._freed = locked, None

    def _forget_reported(self, lanes: tuple[str, ...]) -> None:
        """Forget the places that begin with one of these, and were reported before the present listing or check."""
        old_front, old_reported = self._marks
        front, reported = list(self._front), list(self._reported)
        new = len(front) - old_front  # put back at the front while it was running
        self._front = deque(front[:new] + [place for place in front[new:] if not place.startswith(lanes)])
        self._reported = deque(
            [place for place in reported[:old_reported] if not place.startswith(lanes)] + reported[old_reported:]
        )

    def _remember_peer_items(self, lane: str, items: dict[str, float], now: float, *, busy: bool) -> None:
        """Store other consumers' names of a listing; keep when each was first seen.

        A consumer with its own items is ``busy``; any other one takes stale items by `steal`.
        """
        items.update(self._peer_items.get(lane, {}))  # reported while the listing was running
        self._peer_items[lane] = items
        before, self._before = self._before, {}
        late: list[str] = []
        for name, since in before.items():
            if name in items:
                items[name] = since
                if now - since >= STALE_AFTER and now - since >= STALE_AFTER * self._distance(lane, name):
                    late.append(name)
        if late and busy:
            self._take_over(lane, [name for name in late if self._free(name, lambda _: False)])

    def _take_over(self, lane: str, late: list[str]) -> None:
        """Move a few of other consumers' very stale items to the front.

        A consumer that always finds its own items never reaches `steal`, and some of the others may be busy for
        good. Their own consumer may just be slow, so this consumer takes one part of as many as there are consumers:
        those that it is nearest to in line, which other consumers seldom take, and of these the ones that it saw first:
        otherwise the same ones would be left behind for as long as more are put.
        """
        few, seen = -(-len(late) // self._share.count), self._peer_items[lane]
        late.sort(key=lambda name: (self._distance(lane, name), seen[name]))
        taken = self._random.sample(late[:few], few)
        self._front.extend(self._remove([(lane, name) for name in taken]))

    def add_reported(self, lane: str, ids: Mapping[str, str], now: float) -> int:
        """Add new items of a lane reported by a watch, by name with their ids, which are the names of their locks.

        Return how many are in this consumer's share.
        """
        if self._locked:
            for lock in ids.values():
                self._locked.discard(lock)
        if self._freed is not None:
            self._freed.update(ids.values())
        return self._add(lane, list(ids), now)

    def try_later(self, place: str, now: float) -> bool:
        """Add an item whose lock may still exist; return whether it is in this consumer's share."""
        lane, name = ItemRef.parse(place)
        return self._add(lane, [name], now) == 1

    def _add(self, lane: str, names: list[str], now: float) -> int:
        own = names if self._share.alone else self._own(lane, names)
        if own:
            self._add_own(lane, own, now)
        if len(own) < len(names):
            owned, items = set(own), self._peer_items.setdefault(lane, {})
            for name in names:
                if name not in owned:
                    if len(items) >= REPORTED_LIMIT:
                        self._dropped_at = now
                        break
                    items.setdefault(name, now)
        return len(own)

    def _add_own(self, lane: str, names: list[str], now: float) -> None:
        free = max(0, REPORTED_LIMIT - len(self._reported))
        self._reported.extend([f"{lane}/{name}" for name in names[:free]])
        if len(names) > free:
            self._dropped_at = now

    @property
    def next_due(self) -> int | None:
        """When the earliest candidate is due, ms in ZooKeeper's time; None: now, or never."""
        return None

    def is_locked(self, lock: str) -> bool:
        """Whether another session is known to hold a lock."""
        return lock in self._locked

    def lock(self, lock: str) -> None:
        """Record that another session holds a lock."""
        self._locked.add(lock)
        if self._freed is not None:
            self._freed.discard(lock)

    def unlock(self, lock: str) -> None:
        """Record that a lock has ended."""
        self._locked.discard(lock)
        if self._freed is not None:
            self._freed.add(lock)

    def offer(self, places: Sequence[str], now: float) -> None:
        """Add due items behind released ones; an item may be offered twice."""
        present = set(self._front)
        for place in places:
            lane, name = ItemRef.parse(place)
            if not self._owns(lane, name):
                self._unlock(place)
                self._peer_items.setdefault(lane, {}).setdefault(name, now)
            elif place not in present:
                self._unlock(place)
                self._front.append(place)

    @property
    def has_more(self) -> bool:
        """Whether there are listed candidates of this consumer's own."""
        return bool(self._listed or self._refill())

    @property
    def full(self) -> bool:
        """Whether no further reported items are kept."""
        return len(self._reported) >= REPORTED_LIMIT

    def forget(self, place: str) -> None:
        """Record that an item no longer exists."""
        lane, name = ItemRef.parse(place)
        self._peer_items.get(lane, {}).pop(name, None)
        if self._locked and self._groups is None:
            with suppress(MalformedError):
                self._locked.discard(self._lock_id(name))

    def put_back(self, places: Sequence[str]) -> None:
        """Return candidates to the front, in their order; their locks are gone."""
        self._front.extendleft(reversed(places))
        for place in places:
            self._unlock(place)

    def put_last(self, places: Iterable[str]) -> None:
        """Move candidates behind all others, and continue somewhere else: other consumers work where these were."""
        self._listed_at = None
        self._reported.extend(places)
        listed = self._listed
        if len(listed) > 1:
            cut = self._random.randrange(len(listed))
            self._listed = listed[cut:] + listed[:cut]

    def pop(self, limit: int, excluded: Callable[[str], bool], now: float) -> list[str]:
        """Take the oldest of this consumer's candidates, except excluded ids, until they hold ``limit`` messages.

        Up to `PASSED_OVER` names are examined at a time; there may be more candidates if it is then `unfinished`.
        """
        self.unfinished = False
        places: list[str] = []
        for source in (self._front, self._reported):
            if source is self._reported:
                limit = self._pop_listed(places, limit, excluded, now)
            if self.unfinished:
                break
            chosen = set(places)  # items freed or reported since the listing may also be in it
            while source and len(places) < limit:
                place = source.popleft()
                if place not in chosen and self._free(name_at(place), excluded):
                    places.append(place)
                    chosen.add(place)
                    if is_bundle_at(place):
                        limit -= messages_in(name_at(place)) - 1
        return places

    def batch_limit(self, now: float) -> int | None:
        """Return how many of this consumer's candidates to claim in one request; None: as many as are wanted.

        Idle consumers take the last items of a share that is not claimed in time. A request is refused as a whole if
        another consumer has one of its items, so small ones lose fewer locks.
        """
        if self._share.alone or self._groups is not None:
            return None
        if self._listed_at is None:
            return LAST_TOGETHER
        few = len(self._front) + len(self._listed) + len(self._reported) <= LAST_LIMIT
        return LAST_TOGETHER if few and now - self._listed_at >= FIRST_WAIT else None

    def take_of_peers(self, limit: int, excluded: Callable[[str], bool]) -> list[str]:
        """Take other consumers' items at once, for a taker that wants only messages available now."""
        free = [
            (lane, name) for lane, items in self._peer_items.items() for name in items if self._free(name, excluded)
        ]
        return self._remove(self._random.sample(free, min(limit, len(free))))

    def steal(self, excluded: Callable[[str], bool], now: float) -> list[str]:
        """Take a few of other consumers' stale items, right after a listing."""
        stale = self._stale_items(now)
        chosen = self._sample(stale)
        if not all(self._free(name, excluded) for _, name in chosen):
            busy = {(lane, name) for lane, name in stale if not self._free(name, excluded)}
            self._remove(busy)  # the next listing that finds them free sees them for the first time
            chosen = self._sample([item for item in stale if item not in busy])
        return self._remove(chosen)

    def stealable(self, excluded: Callable[[str], bool], limit: int, now: float) -> list[str] | None:
        """Return the known items of others that may be taken now or soon, earliest first.

        None: a listing is needed, because there are too many, or some were not kept.
        """
        known = sum(map(len, self._peer_items.values()))
        if known > STEALABLE_LIMIT or (self._dropped_at is not None and now - self._dropped_at >= STALE_AFTER):
            return None
        due = [
            (since + self._steal_delay(lane, name), lane, name)
            for lane, items in self._peer_items.items()
            for name, since in items.items()
            if self._free(name, excluded)
        ]
        if sum(moment <= now for moment, _, _ in due) > limit:
            return None
        due.sort()
        return [ItemRef(lane, name).path for _, lane, name in due[:limit]]

    def take_over(self, places: Iterable[str], limit: int, excluded: Callable[[str], bool], now: float) -> list[str]:
        """Take a few of these places whose items still exist and are due, the nearest in line first."""
        stale: list[tuple[str, str]] = []
        for place in places:
            lane, name = ItemRef.parse(place)
            since = self._peer_items.get(lane, {}).get(name)
            if since is not None and now - since >= self._steal_delay(lane, name) and self._free(name, excluded):
                stale.append((lane, name))
        stale.sort(key=lambda item: self._distance(*item))
        return self._remove(stale[: min(limit, max(1, len(stale) // self._share.count))])

    def leave_to_peers(self, places: Iterable[str], since: float) -> None:
        """Leave items to other consumers that just took one of them; they were first seen at ``since``."""
        for place in places:
            lane, name = ItemRef.parse(place)
            self._peer_items.setdefault(lane, {}).setdefault(name, since)

    def begin_lock_read(self) -> None:
        """Prepare for a read of some items' locks."""
        self._freed = set()

    def end_lock_read(self, locked: Iterable[str]) -> None:
        """Record the locks found, except those that were reported as gone since the read began."""
        self._locked.update(set(locked) - (self._freed or set()))
        self._freed = None

    def _stale_items(self, now: float) -> list[tuple[str, str]]:
        """Return other consumers' stale items, from a sample if there are very many."""
        latest, stale = now - FIRST_WAIT, list[tuple[str, str]]()
        for lane, items in self._peer_items.items():
            names: Iterable[str] = items
            if len(items) > STEALABLE_LIMIT:
                names = self._random.sample(list(items), STEALABLE_LIMIT)
            stale += [
                (lane, name)
                for name in names
                if (since := items[name]) <= latest and now - since >= self._steal_delay(lane, name)
            ]
        return stale

    def _sample(self, stale: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return a few of other consumers' stale items.

        This consumer is near to them in line, so others that search now take other items. Of these it takes the newer
        ones, which their own consumers take last.
        """
        few = max(1, len(stale) // self._share.count)
        near = sorted(stale, key=lambda item: self._distance(*item))[:few]
        near.sort(key=lambda item: self._order(item[1]), reverse=True)
        return near[:few]

    def may_steal(self, excluded: Callable[[str], bool], now: float) -> bool:
        """Whether an item may be stolen now. Unlike `next_steal`, the search ends at the first such item."""
        if self._dropped_at is not None and now - self._dropped_at >= STALE_AFTER:
            return True
        return any(
            now - since >= FIRST_WAIT and now - since >= self._steal_delay(lane, name) and self._free(name, excluded)
            for lane, items in self._peer_items.items()
            for name, since in items.items()
        )

    @property
    def no_steal_before(self) -> float | None:
        """A moment before which no item of other consumers may be stolen; cheaper than `next_steal`."""
        moments = [min(items.values()) + FIRST_WAIT for items in self._peer_items.values() if items]
        if self._dropped_at is not None:
            moments.append(self._dropped_at + STALE_AFTER)
        return min(moments, default=None)

    def next_steal(self, excluded: Callable[[str], bool]) -> float | None:
        """When the first of other consumers' items may be stolen, on the clock of ``now``; None: no item.

        Locked and excluded items do not count: the session that ends their lock wakes this one, and so does the end of
        its own claim. For reported items that were not kept, a search is scheduled.
        """
        first: float | None = None
        if self._dropped_at is not None:
            first = self._dropped_at + STALE_AFTER
        for lane, items in self._peer_items.items():
            for name, since in items.items():
                if first is not None and since + FIRST_WAIT >= first:
                    continue  # with many items, most end here
                due = since + max(FIRST_WAIT, self._steal_delay(lane, name))  # 0 if it is our own by a new share
                if (first is None or due < first) and self._free(name, excluded):
                    first = due
        return first

    def _pop_listed(self, places: list[str], limit: int, excluded: Callable[[str], bool], now: float) -> int:
        """Add listed candidates; return the limit, less the messages that bundles hold beyond one."""
        listed, alone, lane, locked = self._listed, self._share.alone, self._lane, self._locked.values
        chosen, lock_id = set(places), self._lock_id
        for _ in range(PASSED_OVER):
            if len(places) >= limit:
                return limit
            if not listed and not (listed := self._refill()):
                return limit
            name = listed.pop()
            if not alone and not self._owns(lane, name):  # the shares have changed since the listing
                self._peer_items.setdefault(lane, {}).setdefault(name, now)
                continue
            try:  # as in `_free`, for every message
                lock = lock_id(name)
            except MalformedError:
                continue
            if lock not in locked and not excluded(lock) and (place := f"{lane}/{name}") not in chosen:
                places.append(place)
                if name[0] == "b":  # it may be a bundle
                    limit -= messages_in(name) - 1
        self.unfinished = True
        return limit

    def _refill(self) -> list[str]:
        """Take the next names of the listing; return them, the first one last."""
        listed = self._listed = list(islice(self._more, REFILL))[::-1]
        if len({name[-SEQUENCE_DIGITS:] for name in listed}) < len(listed):  # items of one bundle
            listed.sort(key=_order_and_id, reverse=True)
        return listed

    def _remove(self, chosen: Iterable[tuple[str, str]]) -> list[str]:
        for lane, name in chosen:
            del self._peer_items[lane][name]
        return [ItemRef(lane, name).path for lane, name in chosen]

    def _unlock(self, place: str) -> None:
        if self._locked or self._freed is not None:
            self.unlock(self._lock_id(name_at(place)))

    def _free(self, name: str, excluded: Callable[[str], bool]) -> bool:
        try:
            lock = self._lock_id(name)
        except MalformedError:
            return False  # another program's znode
        return lock not in self._locked and not excluded(lock)

    def _lock_id(self, name: str) -> str:
        return candidate_id(name) if self._groups is None else self._groups.lock_id(name)

    def _owns(self, lane: str, name: str) -> bool:
        """Whether an item is in this consumer's share; the items of a group all are, or none is."""
        if self._groups is None:
            return self._share.owns(name, self._offset(lane))
        return self._share.owns(self._groups.lock_id(name))

    def _distance(self, lane: str, name: str) -> int:
        """Return the distance of an item's consumer; the items of a group all have the same one."""
        if self._groups is None:
            return self._share.distance(name, self._offset(lane))
        return self._share.distance(self._groups.lock_id(name))

    def _steal_delay(self, lane: str, name: str) -> float:
        if self._groups is None:
            return self._share.steal_delay(name, self._offset(lane))
        return self._share.steal_delay(self._groups.lock_id(name))

    def _offset(self, lane: str) -> int:
        offset = self._offsets.get(lane)
        if offset is None:
            offset = self._offsets[lane] = self._share.offset(lane)
        return offset


def _order_and_name(name: str) -> str:
    """Return the sort key of the items of an ordered queue: those of a former bundle share a sequence number."""
    return name[-SEQUENCE_DIGITS:] + name


def _order_and_id(name: str) -> tuple[str, str]:
    """Return the sort key of plain items: their sequence number, then their id."""
    return name[-SEQUENCE_DIGITS:], name
