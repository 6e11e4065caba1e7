"""Candidates to claim: the places of items seen without a lock, oldest first. Pure.

A place is an item's path relative to its queue: ``items/<name>``, or ``lanes/<lane>/<name>``. Of a listing, what other
consumers take first is set aside, and the rest is sorted; a name is looked into only when it is its turn, so that the
cost of a deep queue is that of a hash of each name, and of sorting one's own.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from aiozkqueue.layout import MalformedError, item_id

from .collectors import Dealt
from .partition import FIRST_WAIT, Partition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from random import Random

    from .groups import GroupIndex

#: Candidates kept of a listing; the rest is listed again when these run out.
BACKLOG_LIMIT = 200_000
#: Of a listing, names of other consumers that are kept: what they may leave stealable.
OTHERS_LIMIT = 20_000
#: Names that are put in order at a time, of a long listing.
REFILL = 4096
#: Candidates that watches have told of and nobody has taken yet.
HEARD_LIMIT = 10_000
SEQUENCE_DIGITS = 10
#: Of so many of the others' items it is known which may be taken next; of more, a listing tells.
LYING_LIMIT = 2_000
#: Seconds after which others' items are taken even by who has enough of its own; each further one in line waits as
#: long again.
FAR_TOO_LONG = 0.5


class Backlog:
    """What one consumer may try next."""

    #: What names are sorted by, the oldest first: whatever compares.
    _order: Callable[[str], Any] = itemgetter(slice(-SEQUENCE_DIGITS, None))

    def __init__(self, random: Random) -> None:
        self._random = random
        self._share = Partition()
        self._offsets: dict[str, int] = {}  # by lane
        self._index: GroupIndex | None = None
        self._lane = ""
        self._listed: list[str] = []  # names, newest first, so that the oldest is popped
        self._more: Iterator[str] = iter(())  # names that come after those, the oldest first
        self._front: deque[str] = deque()  # places, given back
        self._heard: deque[str] = deque()  # places, told by watches
        self._locked: set[str] = set()  # ids
        self._freed: set[str] | None = None  # ids whose locks have gone while a listing is under way
        self._others: dict[str, dict[str, float]] = {}  # by lane: others' items, and since when they have been seen
        self._before: dict[str, float] = {}  # the same of the lane that is being listed, as of the listing before
        self._overheard: float | None = None  # when an item was told of last that is not kept
        self._told: tuple[int, int] = (0, 0)

    def clear(self) -> None:
        """Forget all."""
        self.forget_listed()
        self._front.clear()
        self._heard.clear()
        self._locked.clear()
        self._freed = None
        self._others.clear()
        self._before.clear()
        self._overheard = None

    def regroup(self, index: GroupIndex | None) -> None:
        """Begin anew, with what is known of the queue's groups; None: it has none."""
        self.clear()
        self.reindex(index)

    def reindex(self, index: GroupIndex | None) -> None:
        """Go by what is known of the queue's groups."""
        self._index = index

    def forget_listed(self) -> None:
        """What was listed is gone: its lanes have been seen empty."""
        self._listed.clear()
        self._more = iter(())

    def reshare(self, share: Partition) -> None:
        """Take note of who else is there."""
        self._share = share
        self._offsets.clear()

    @property
    def share(self) -> Partition:
        """This consumer's place among the live ones."""
        return self._share

    def looked(self, began: float) -> None:
        """All lanes have been looked at since then: what was told before, and not kept, has been seen."""
        if self._overheard is not None and self._overheard < began:
            self._overheard = None

    def begin_listing(self, lane: str) -> None:
        """A lane is about to be listed: what has been told of it so far will be in the listing."""
        self._told = (len(self._front), len(self._heard))
        if self._index is not None:
            self._index.begin_listing(lane)
        self._freed = set()
        self._before, self._others[lane] = self._others.get(lane, {}), {}

    def deal(self, lane: str, passes: Callable[[str], object] | None) -> Dealt:
        """Return a collector for the listing of a lane, of a queue without groups: see `fill_dealt`."""
        return Dealt(self._share, self._offset(lane), passes, own_limit=BACKLOG_LIMIT, others_limit=OTHERS_LIMIT)

    def fill_dealt(self, lane: str, dealt: Dealt, locked: set[str], now: float) -> None:
        """Take a listing that was dealt out while it came in, and the ids that are locked."""
        self._settle_told(lane, locked)
        if not self._share.alone:
            self._remember_others(lane, dict.fromkeys(dealt.others.kept(), now), now)
        self._lane, self._listed, self._more = lane, [], dealt.own.in_order()

    def fill(self, lane: str, names: list[str], locked: set[str], now: float) -> None:
        """Take the listing of a lane, and the ids that are locked."""
        self._settle_told(lane, locked)
        whole = len(names) <= BACKLOG_LIMIT
        if not whole or self._index is not None:
            names.sort(key=self._order)
            del names[BACKLOG_LIMIT:]
        if self._index is not None:
            names = self._index.digest(lane, names, self._locked, whole=whole)
        if not self._share.alone:
            names = self._set_others_aside(lane, names, now)
        names.sort(key=self._order, reverse=True)
        self._lane, self._listed, self._more = lane, names, iter(())

    def _settle_told(self, lane: str, locked: set[str]) -> None:
        """Forget what was told of a lane before its listing, and has been seen in that."""
        old_front, old_heard = self._told
        front, heard, prefix = list(self._front), list(self._heard), f"{lane}/"
        new = len(front) - old_front  # put back while the listing was under way, at the front
        self._front = deque(front[:new] + [place for place in front[new:] if not place.startswith(prefix)])
        self._heard = deque([one for one in heard[:old_heard] if not one.startswith(prefix)] + heard[old_heard:])
        locked -= self._freed or set()
        self._locked, self._freed = locked, None

    def _set_others_aside(self, lane: str, names: list[str], now: float) -> list[str]:
        """Return what of a listing is this consumer's; of the rest, remember since when it has been seen."""
        if self._index is None:
            own = self._share.own(names, self._offset(lane))
        else:
            own = [name for name in names if not self._distance(lane, name)]
        others = dict.fromkeys(names, now)
        for name in own:
            del others[name]
        self._remember_others(lane, others, now)
        return own

    def _remember_others(self, lane: str, others: dict[str, float], now: float) -> None:
        """Take what a listing has for others; keep since when each has been seen."""
        others.update(self._others.get(lane, {}))  # told of while the listing was under way
        self._others[lane] = others
        before, self._before = self._before, {}
        late: list[str] = []
        for name, since in before.items():
            if name in others:
                others[name] = since
                if now - since >= FAR_TOO_LONG and now - since >= FAR_TOO_LONG * self._distance(lane, name):
                    late.append(name)
        if late:
            self._take_over(lane, [name for name in late if self._free(name, _by_nobody)])

    def _take_over(self, lane: str, late: list[str]) -> None:
        """Put half of what others have left stealable for far too long to the front.

        Whoever always finds something of its own never gets to `steal`, and some of the others may be busy for good.
        Half, and in random order, since its own consumer may just be slow.
        """
        taken = self._random.sample(late, (len(late) + 1) // 2)
        self._front.extend(self._remove([(lane, name) for name in taken]))

    def hear(self, place: str, now: float) -> bool:
        """Take a new item, told by a watch; True when it is this consumer's to take."""
        self._unlock(place)
        return self.try_later(place, now)

    def try_later(self, place: str, now: float) -> bool:
        """Take a place to try, of an item whose lock is not known to be gone; True when it is this consumer's."""
        lane, _, name = place.rpartition("/")
        if self._distance(lane, name):
            others = self._others.setdefault(lane, {})
            if len(others) < HEARD_LIMIT:
                others.setdefault(name, now)
            else:
                self._overheard = now
            return False
        if len(self._heard) < HEARD_LIMIT:
            self._heard.append(place)
        else:
            self._overheard = now
        return True

    @property
    def next_due(self) -> int | None:
        """When the first of what is here may be taken, ms in ZooKeeper's time; None: now, or never."""
        return None

    def is_locked(self, lock: str) -> bool:
        """Whether somebody else is known to hold a lock."""
        return lock in self._locked

    def lock(self, lock: str) -> None:
        """Somebody else holds a lock."""
        self._locked.add(lock)
        if self._freed is not None:
            self._freed.discard(lock)

    def unlock(self, lock: str) -> None:
        """A lock is gone."""
        self._locked.discard(lock)
        if self._freed is not None:
            self._freed.add(lock)

    def offer(self, places: Sequence[str], now: float) -> None:
        """Take items whose time has come, behind those given back; one may have been offered before."""
        present = set(self._front)
        for place in places:
            lane, _, name = place.rpartition("/")
            if self._distance(lane, name):
                self._others.setdefault(lane, {}).setdefault(name, now)
            elif place not in present:
                self._front.append(place)

    @property
    def full(self) -> bool:
        """Whether no more that watches tell of is kept."""
        return len(self._heard) >= HEARD_LIMIT

    def forget(self, place: str) -> None:
        """An item is gone."""
        lane, _, name = place.rpartition("/")
        self._others.get(lane, {}).pop(name, None)
        if self._locked and self._index is None:
            with suppress(MalformedError):
                self._locked.discard(self._lock_id(name))

    def put_back(self, places: Sequence[str]) -> None:
        """Put candidates back to the front, in their order; their locks are gone."""
        self._front.extendleft(reversed(places))
        for place in places:
            self._unlock(place)

    def put_last(self, places: Iterable[str]) -> None:
        """Put candidates behind all others, and go on somewhere else: others work where these were."""
        self._heard.extend(places)
        listed = self._listed
        if len(listed) > 1:
            cut = self._random.randrange(len(listed))
            self._listed = listed[cut:] + listed[:cut]

    def pop(self, limit: int, excluded: Callable[[str], bool], now: float) -> list[str]:
        """Take the oldest of this consumer's, without those whose id is excluded."""
        places: list[str] = []
        for source in (self._front, self._heard):
            if source is self._heard:
                self._pop_listed(places, limit, excluded, now)
            chosen = set(places)  # what was freed, or heard of, since the listing is in that too
            while source and len(places) < limit:
                place = source.popleft()
                if place not in chosen and self._free(place.rpartition("/")[2], excluded):
                    places.append(place)
                    chosen.add(place)
        return places

    def take_of_others(self, limit: int, excluded: Callable[[str], bool]) -> list[str]:
        """Take what is another's, at once: for a taker that asks what is there, whoever's it is."""
        free = [(lane, name) for lane, others in self._others.items() for name in others if self._free(name, excluded)]
        return self._remove(self._random.sample(free, min(limit, len(free))))

    def steal(self, excluded: Callable[[str], bool], now: float) -> list[str]:
        """Take a few of what others have left stealable for too long, by a listing made just now."""
        ripe = self._ripe(now)
        chosen = self._sample(ripe)
        if not all(self._free(name, excluded) for _, name in chosen):
            busy = {(lane, name) for lane, name in ripe if not self._free(name, excluded)}
            self._remove(busy)  # a listing that finds them free sees them for the first time
            chosen = self._sample([one for one in ripe if one not in busy])
        return self._remove(chosen)

    def stealable(self, excluded: Callable[[str], bool], limit: int, now: float) -> list[str] | None:
        """Return the known items of others that may be taken now or soon, earliest first.

        None: too much may be taken now, or something has not been kept in mind; a listing tells.
        """
        known = sum(map(len, self._others.values()))
        if known > LYING_LIMIT or (self._overheard is not None and now - self._overheard >= FAR_TOO_LONG):
            return None
        due = [
            (since + self._patience(lane, name), lane, name)
            for lane, others in self._others.items()
            for name, since in others.items()
            if self._free(name, excluded)
        ]
        if sum(moment <= now for moment, _, _ in due) > limit:
            return None
        due.sort()
        return [f"{lane}/{name}" for _, lane, name in due[:limit]]

    def take_over(self, places: Iterable[str], limit: int, excluded: Callable[[str], bool], now: float) -> list[str]:
        """Take a few of these places whose items lie there still and whose time it is, the nearest in line first."""
        ripe: list[tuple[str, str]] = []
        for place in places:
            lane, _, name = place.rpartition("/")
            since = self._others.get(lane, {}).get(name)
            if since is not None and now - since >= self._patience(lane, name) and self._free(name, excluded):
                ripe.append((lane, name))
        ripe.sort(key=lambda one: self._distance(*one))
        return self._remove(ripe[: min(limit, max(1, len(ripe) // self._share.count))])

    def leave(self, places: Iterable[str], since: float) -> None:
        """Leave items to others, of which one was taken just now; they have been seen since then."""
        for place in places:
            lane, _, name = place.rpartition("/")
            self._others.setdefault(lane, {}).setdefault(name, since)

    def begin_look(self) -> None:
        """The locks of some items are about to be read."""
        self._freed = set()

    def end_look(self, locked: Iterable[str]) -> None:
        """Take what has been found locked, unless it has been heard since that it is not."""
        self._locked.update(set(locked) - (self._freed or set()))
        self._freed = None

    def _ripe(self, now: float) -> list[tuple[str, str]]:
        """Return what others have left stealable for too long; of very much, what a sample has of it."""
        latest, ripe = now - FIRST_WAIT, list[tuple[str, str]]()
        for lane, others in self._others.items():
            names: Iterable[str] = others
            if len(others) > LYING_LIMIT:
                names = self._random.sample(list(others), LYING_LIMIT)
            ripe += [
                (lane, name)
                for name in names
                if (since := others[name]) <= latest and now - since >= self._patience(lane, name)
            ]
        return ripe

    def _sample(self, ripe: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return a few of what others have left stealable.

        This consumer is near to them in line, so that others that look now take others; of these, the newer ones, which
        their own consumers take last.
        """
        few = max(1, len(ripe) // self._share.count)
        near = sorted(ripe, key=lambda one: self._distance(*one))[: 2 * few if few > 1 else 1]
        near.sort(key=lambda one: self._order(one[1]), reverse=True)
        return near[:few]

    def next_steal(self) -> float | None:
        """When the first of what others leave stealable may be taken, on the clock of ``now``; None when nothing is.

        What is locked does not lie there: whoever ends that lock rings. Of what was told and not kept it is not known
        whether it lies there: that is looked for.
        """
        first: float | None = None
        if self._overheard is not None:
            first = self._overheard + FAR_TOO_LONG
        for lane, others in self._others.items():
            for name, since in others.items():
                if first is not None and since + FIRST_WAIT >= first:
                    continue  # of many, most are looked at no closer
                due = since + self._patience(lane, name)
                if (first is None or due < first) and self._free(name, _by_nobody):
                    first = due
        return first

    def _pop_listed(self, places: list[str], limit: int, excluded: Callable[[str], bool], now: float) -> None:
        listed, alone, lane, locked = self._listed, self._share.alone, self._lane, self._locked
        chosen, lock_id = set(places), self._lock_id
        while len(places) < limit:
            if not listed:
                listed = self._listed = list(islice(self._more, REFILL))[::-1]
                if not listed:
                    break
            name = listed.pop()
            if not alone and self._distance(lane, name):  # the shares have changed since it was listed
                self._others.setdefault(lane, {}).setdefault(name, now)
                continue
            try:  # as in `_free`, for every message
                lock = lock_id(name)
            except MalformedError:
                continue
            if lock not in locked and not excluded(lock) and (place := f"{lane}/{name}") not in chosen:
                places.append(place)

    def _remove(self, chosen: Iterable[tuple[str, str]]) -> list[str]:
        for lane, name in chosen:
            del self._others[lane][name]
        return [f"{lane}/{name}" for lane, name in chosen]

    def _unlock(self, place: str) -> None:
        if self._locked or self._freed is not None:
            self.unlock(self._lock_id(place.rpartition("/")[2]))

    def _free(self, name: str, excluded: Callable[[str], bool]) -> bool:
        try:
            lock = self._lock_id(name)
        except MalformedError:
            return False  # another program's znode
        return lock not in self._locked and not excluded(lock)

    def _lock_id(self, name: str) -> str:
        return item_id(name) if self._index is None else self._index.lock_id(name)

    def _distance(self, lane: str, name: str) -> int:
        """A group's items are all the same consumer's."""
        if self._index is None:
            return self._share.distance(name, self._offset(lane))
        return self._share.distance(self._index.lock_id(name))

    def _patience(self, lane: str, name: str) -> float:
        if self._index is None:
            return self._share.patience(name, self._offset(lane))
        return self._share.patience(self._index.lock_id(name))

    def _offset(self, lane: str) -> int:
        offset = self._offsets.get(lane)
        if offset is None:
            offset = self._offsets[lane] = self._share.offset(lane)
        return offset


def _by_nobody(_: str) -> bool:
    return False
