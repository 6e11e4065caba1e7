"""Candidates to claim: the places of items seen without a lock, oldest first. Pure.

A place is an item's path relative to its queue: ``items/<name>``, or ``lanes/<lane>/<name>``. A listing is kept as it
came, sorted; a name is looked into only when it is its turn, so that the cost of a deep queue is that of sorting it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from aiozkqueue.layout import MalformedError, item_id

from .share import Share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from random import Random

    from .groups import GroupIndex

#: Candidates kept of a listing; the rest is listed again when these run out.
BACKLOG_LIMIT = 200_000
#: Candidates that watches have told of and nobody has taken yet.
HEARD_LIMIT = 10_000
SEQUENCE_DIGITS = 10
#: Seconds after which others' items are taken even by who has enough of its own; each further one in line waits as
#: long again.
FAR_TOO_LONG = 0.5


class Backlog:
    """What one consumer may try next."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._share = Share()
        self._index: GroupIndex | None = None
        self._lane = ""
        self._listed: list[str] = []  # names, newest first, so that the oldest is popped
        self._front: deque[str] = deque()  # places, given back
        self._heard: deque[str] = deque()  # places, told by watches
        self._locked: set[str] = set()  # ids
        self._freed: set[str] | None = None  # ids whose locks have gone while a listing is under way
        self._others: dict[str, dict[str, float]] = {}  # by lane: others' items, and since when they have been seen
        self._before: dict[str, float] = {}  # the same of the lane listed last, as of the listing before
        self._told: tuple[int, int] = (0, 0)

    def clear(self) -> None:
        """Forget all."""
        self._listed.clear()
        self._front.clear()
        self._heard.clear()
        self._locked.clear()
        self._freed = None
        self._others.clear()
        self._before.clear()

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

    def reshare(self, share: Share) -> None:
        """Take note of who else is there."""
        self._share = share

    @property
    def share(self) -> Share:
        """This consumer's place among the live ones."""
        return self._share

    def begin_listing(self, lane: str) -> None:
        """A lane is about to be listed: what has been told of it so far will be in the listing."""
        self._told = (len(self._front), len(self._heard))
        if self._index is not None:
            self._index.begin_listing(lane)
        self._freed = set()
        self._before, self._others[lane] = self._others.get(lane, {}), {}

    def fill(self, lane: str, names: list[str], locked: set[str]) -> None:
        """Take the listing of a lane, and the ids that are locked."""
        old_front, old_heard = self._told
        front, heard, prefix = list(self._front), list(self._heard), f"{lane}/"
        new = len(front) - old_front  # put back while the listing was under way, at the front
        self._front = deque(front[:new] + [place for place in front[new:] if not place.startswith(prefix)])
        self._heard = deque([one for one in heard[:old_heard] if not one.startswith(prefix)] + heard[old_heard:])
        names.sort(key=self._order, reverse=True)
        whole = len(names) <= BACKLOG_LIMIT
        if not whole:
            del names[: len(names) - BACKLOG_LIMIT]
        locked -= self._freed or set()
        if self._index is not None:
            names.reverse()
            names = self._index.digest(lane, names, locked, whole=whole)
            names.reverse()
        self._lane, self._listed, self._locked = lane, names, locked
        self._freed = None

    def hear(self, place: str, now: float) -> bool:
        """Take a new item, told by a watch; True when it is this consumer's to take."""
        self._unlock(place)
        return self.try_later(place, now)

    def try_later(self, place: str, now: float) -> bool:
        """Take a place to try, of an item whose lock is not known to be gone; True when it is this consumer's."""
        lane, _, name = place.rpartition("/")
        if self._distance(name):
            others = self._others.setdefault(lane, {})
            if len(others) < HEARD_LIMIT:
                others.setdefault(name, now)
            return False
        if len(self._heard) < HEARD_LIMIT:
            self._heard.append(place)
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
            if self._distance(name):
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
        """Take a few, at random, of what others have left lying for too long, by a listing made just now."""
        ripe: list[tuple[str, str]] = []
        for lane, others in self._others.items():
            for name, since in list(others.items()):
                if now - since < self._patience(name):
                    continue
                if self._free(name, excluded):
                    ripe.append((lane, name))
                else:
                    del others[name]  # a listing that finds it free sees it for the first time
        if not ripe:
            return []
        return self._remove(self._random.sample(ripe, max(1, len(ripe) // (2 * self._share.count))))

    def take_over(self, now: float) -> None:
        """Put half of what others have left lying for far too long to the front, by the listing made just now.

        Whoever always finds something of its own never gets to `steal`, and some of the others may be busy for good.
        Half, and in random order, since its own consumer may just be slow.
        """
        distance = self._distance
        late = [name for name, since in self._before.items() if now - since >= FAR_TOO_LONG * distance(name)]
        if late:
            still = set(self._listed)
            late = [name for name in late if name in still and self._free(name, _by_nobody)]
            taken = self._random.sample(late, (len(late) + 1) // 2)
            self._front.extend(f"{self._lane}/{name}" for name in taken)
            still.difference_update(taken)
            self._listed = [name for name in self._listed if name in still]

    def next_steal(self) -> float | None:
        """When the first of what others leave lying may be taken, on the clock of ``now``; None when nothing is.

        What is locked does not lie there: whoever ends that lock rings.
        """
        patience, first = self._patience, None
        for others in self._others.values():
            for name, since in others.items():
                due = since + patience(name)
                if (first is None or due < first) and self._free(name, _by_nobody):
                    first = due
        return first

    def _pop_listed(self, places: list[str], limit: int, excluded: Callable[[str], bool], now: float) -> None:
        listed, share, lane = self._listed, self._share, self._lane
        chosen = set(places)
        while listed and len(places) < limit:
            name = listed.pop()
            if not share.alone and self._distance(name):
                self._others[lane][name] = self._before.get(name, now)
            elif self._free(name, excluded) and (place := f"{lane}/{name}") not in chosen:
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

    def _order(self, name: str) -> Any:  # noqa: ANN401 - whatever compares
        """What names are sorted by, the oldest first."""
        return name[-SEQUENCE_DIGITS:]

    def _lock_id(self, name: str) -> str:
        return item_id(name) if self._index is None else self._index.lock_id(name)

    def _distance(self, name: str) -> int:
        """A group's items are all the same consumer's."""
        return self._share.distance(name if self._index is None else self._index.lock_id(name))

    def _patience(self, name: str) -> float:
        return self._share.patience(name if self._index is None else self._index.lock_id(name))


def _by_nobody(_: str) -> bool:
    return False
