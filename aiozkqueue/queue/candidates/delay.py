"""Delayed items that one consumer knows: the items due next, and when to list those after them.

Delayed items are stored in folders of one hour each, with the due time in their names, and are claimed from there once
due. Of near hours, consumers know the items, earliest first; of far hours, only that there are items. So a far item
costs one name of an hour, and nothing is listed again while it does not change.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from contextlib import suppress
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Protocol

from aiozkqueue.layout import HOUR, ItemName, ItemRef, hour_at, hour_named, later_of, match_due, name_at, parse_lock
from aiozkqueue.moments import milliseconds_in
from aiozkqueue.runtime.strings import clear_gradually
from aiozkqueue.zookeeper import NoAuthError, NoNodeError, below

from .batches import is_closed
from .collectors import Earliest, Parsed, sequence_of
from .past_hours import remove_hours

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from aiozkqueue.layout import QueuePaths, StoredConfig
    from aiozkqueue.runtime.clock import Clock
    from aiozkqueue.zookeeper import Stat, ZooKeeper

#: Milliseconds before an hour begins at which its items are listed.
LEAD: Final = 60_000
#: Items of one hour that are known at a time, the earliest; the rest is listed when these are due.
NEAREST: Final = 50_000
#: Names kept of an hour beyond those: items that other sessions hold, or that no consumer may see yet.
MORE: Final = 4096
#: Names of an hour that are parsed before the event loop runs other tasks.
PARSED: Final = 2048
#: Items that become candidates at a time.
RELEASE: Final = 1024
#: Hours checked at a time, and how many of them are listed, before their items are used.
CHECKED: Final = 200
LISTED: Final = 16
#: Seconds between checks for other sessions' delayed items in a session that is never idle; longer for long listings.
INTERVAL: Final = 1.0
INTERVAL_PER_LISTING: Final = 50

#: Matches the name of a delayed item up to its due time. `ItemName.parse` takes five times as long.


class HourBucket:
    """The folder of one hour."""

    __slots__ = ("beyond", "changed", "relist_after", "unsettled")

    def __init__(self) -> None:
        self.changed: int | None = None
        """The zxid of the last change of its children when it was listed; None: never listed."""
        self.beyond: int | None = None
        """When the first unknown item is due, if there are too many; at least `INTERVAL` ahead."""
        self.unsettled: bool = False
        """Whether an item was already due at the last search: another session holds it, or is about to take it."""
        self.relist_after: float = 0.0
        """The earliest time of the next listing, on the monotonic clock."""

    def forget_listing(self) -> None:
        """Count it as never listed: it is far away, and was listed before ZooKeeper's time went back."""
        self.changed = self.beyond = None


class DelayedQueue(Protocol):
    """The queue whose delayed messages are indexed."""

    @property
    def paths(self) -> QueuePaths:
        """Its znodes."""
        ...

    @property
    def config(self) -> StoredConfig:
        """Its configuration."""
        ...


class DelayedIndex:
    """The delayed items of one queue."""

    def __init__(self, zookeeper: ZooKeeper, queue: DelayedQueue, clock: Clock) -> None:
        self._zookeeper = zookeeper
        self._queue = queue
        self._clock = clock
        self._hours: dict[int, HourBucket] = {}
        self._heap: list[tuple[int, str]] = []
        self._known: set[str] = set()
        self._listed_at = 0.0
        self._pending: deque[tuple[int, bool]] = deque()  # hours to check, and whether they must be listed
        self.must_refresh: bool = True
        """Whether events may have been missed."""

    def clear(self) -> None:
        """Forget everything."""
        self._hours.clear()
        self._heap.clear()
        self._known.clear()
        self._pending.clear()
        self.must_refresh = True

    @property
    def next(self) -> int | None:
        """When the next step is due, milliseconds of ZooKeeper's time; None: not before an event."""
        times = [self._heap[0][0]] if self._heap else []
        if self._pending:
            times.append(0)
        for number, hour in self._hours.items():
            if hour.changed is None:  # far away: a near hour would have been listed
                times.append(number * HOUR - LEAD)
            elif hour.beyond is not None:
                times.append(hour.beyond)
        return min(times, default=None)

    def due(self, now: int) -> list[str]:
        """Remove and return the places of due items, earliest first, a limited number at a time."""
        places: list[str] = []
        heap = self._heap
        while heap and heap[0][0] <= now and len(places) < RELEASE:
            due, place = heapq.heappop(heap)
            if place in self._known:
                self._known.discard(place)
                places.append(place)
                if (hour := self._hours.get(due // HOUR)) is not None:
                    hour.unsettled = True
        return places

    # -- called by watches

    def add_reported(self, place: str, now: int) -> None:
        """Record that an item or an hour's folder has appeared, or that an item has changed."""
        number = hour_at(place)
        if number is None:
            return
        hour = self._hours.setdefault(number, HourBucket())
        if number * HOUR - LEAD > now:
            hour.forget_listing()
        elif place.count("/") == 2:  # noqa: PLR2004 - later/<hour>/<name>
            item = ItemName.parse(name_at(place))
            if item is not None and item.due is not None:
                self._add(item.due, place)

    def forget(self, place: str) -> None:
        """Record that an item or an hour's folder no longer exists."""
        self._known.discard(place)
        number = hour_at(place)
        if number is not None and place.count("/") == 1:
            self._hours.pop(number, None)

    # -- search

    async def refresh(self, now: int, generation: int, *, watched: bool, asked: bool) -> None:
        """Find the items due next. Many hours are checked in steps, so that messages are not delayed.

        ``watched``: a watch would have reported new items. ``asked``: a taker wants a complete answer nevertheless.
        """
        moment, must = self._clock.monotonic(), self.must_refresh
        again = must or asked or (not watched and moment - self._listed_at > INTERVAL)
        self.must_refresh = False
        try:
            if again:
                self._listed_at = moment
                await self._list_hours(generation)
            if must or asked or not self._pending:  # otherwise each call would begin with the first hour again
                self._pending = deque(self._to_check(now, moment, again=again, asked=asked, must=must))
            await self._check_next(now, generation)
            while asked and self._pending:
                await self._check_next(now, generation)
        except BaseException:
            self.must_refresh = True
            raise

    def _to_check(self, now: int, moment: float, *, again: bool, asked: bool, must: bool) -> Iterator[tuple[int, bool]]:
        """Yield the hours to check, the earliest first, and whether each must be listed."""
        for number, hour in sorted(self._hours.items(), key=itemgetter(0)):
            if number * HOUR - LEAD > now:
                hour.forget_listing()
                continue
            beyond = hour.beyond is not None and hour.beyond <= now
            if hour.changed is None or beyond or must or asked or (again and moment >= hour.relist_after):
                yield number, beyond or must

    async def _check_next(self, now: int, generation: int) -> None:
        """Check the next hours: first which of them changed, all at once; then list a few of those."""
        page = [self._pending.popleft() for _ in range(min(CHECKED, len(self._pending)))]
        hours = [self._hours.get(number) for number, _ in page]
        paths = [self._queue.paths.at(later_of(number * HOUR)) for number, _ in page]
        stats = await asyncio.gather(*(self._zookeeper.exists(path, generation=generation) for path in paths))
        over: list[int] = []
        listed = 0
        for index, ((number, must), hour, stat) in enumerate(zip(page, hours, stats, strict=True)):
            if hour is None or self._hours.get(number) is not hour:
                continue  # it was deleted in the meantime; if created again, it is reported or found later
            if stat is None:
                del self._hours[number]
            elif not stat.num_children and (number + 1) * HOUR <= now:
                over.append(number)
            elif must or hour.changed != stat.pzxid or (hour.unsettled and stat.num_children):
                if listed == LISTED:
                    self._pending.extendleft(reversed(page[index:]))
                    break
                listed += 1
                await self._list_hour(number, hour, stat, now, generation)
        await self._delete(over, generation)

    async def _list_hours(self, generation: int) -> None:
        before = dict(self._hours)
        names = await below(self._zookeeper, self._queue.paths.later, generation=generation)
        numbers = {number for name in names if (number := hour_named(name)) is not None}
        for gone in before.keys() - numbers:
            if self._hours.get(gone) is before[gone]:  # otherwise it was reported after the server read the names
                del self._hours[gone]
        for number in numbers:
            self._hours.setdefault(number, HourBucket())

    async def _list_hour(self, number: int, hour: HourBucket, stat: Stat, now: int, generation: int) -> None:
        """List an hour whose stat was read before."""
        began = self._clock.monotonic()
        folder = later_of(number * HOUR)
        path, limit = self._queue.paths.at(folder), NEAREST + MORE
        while True:
            try:
                earliest, locks = await asyncio.gather(
                    self._zookeeper.children_into(
                        path, partial(Earliest, limit, match_due, _due_of), generation=generation
                    ),
                    self._zookeeper.children_into(
                        self._queue.paths.locks, partial(Parsed, parse_lock), generation=generation
                    ),
                )
            except NoNodeError:
                self._hours.pop(number, None)
                return
            whole = earliest.held < limit
            locked = locks.values
            first, hidden = None, False
            free: list[tuple[int, str]] = []  # due times and names; parsed names would take many times the memory
            async for due, item in self._parsed(earliest.in_order()):
                if self._queue.config.staged and is_closed(item.text, locked):
                    hidden = True  # nothing changes in the folder when its batch is complete
                    continue
                first = due if first is None else first
                if item.id not in locked:
                    free.append((due, item.text))
            await clear_gradually(*locked.parts)
            if whole or len(free) > NEAREST:
                break
            limit *= 4  # locked and hidden items have taken the place of free ones
        hour.unsettled = hidden or (first is not None and first <= now)
        hour.beyond = max(free[NEAREST][0], now + milliseconds_in(INTERVAL)) if len(free) > NEAREST else None
        for start in range(0, min(NEAREST, len(free)), PARSED):
            for due, name in free[start : min(NEAREST, start + PARSED)]:
                self._add(due, ItemRef(folder, name).path)
            await asyncio.sleep(0)
        hour.changed = stat.pzxid  # from before the listing: a later item shows as another change
        hour.relist_after = self._clock.monotonic() + INTERVAL_PER_LISTING * (self._clock.monotonic() - began)

    async def _parsed(self, names: Iterator[str]) -> AsyncIterator[tuple[int, ItemName]]:
        """Yield the delayed items with these names, and their due times.

        The event loop runs other tasks in between.
        """
        while page := list(islice(names, PARSED)):
            for name in page:
                item = ItemName.parse(name)
                if item is not None and item.due is not None:
                    yield item.due, item
            await asyncio.sleep(0)

    def _add(self, due: int, place: str) -> None:
        if place not in self._known:
            self._known.add(place)
            heapq.heappush(self._heap, (due, place))

    async def _delete(self, numbers: Sequence[int], generation: int) -> None:
        """Delete the folders of past hours; a late put creates its folder again."""
        if not numbers:
            return
        before = {number: self._hours.get(number) for number in numbers}
        with suppress(NoAuthError):
            for number in await remove_hours(self._zookeeper, self._queue.paths, numbers, generation):
                if self._hours.get(number) is before[number]:  # otherwise it was created again and reported
                    self._hours.pop(number, None)


def _due_of(name: str) -> tuple[int, str]:
    """Return the sort key of a delayed item's name: its due time, then its sequence number."""
    match = match_due(name)
    return 0 if match is None else int(match[1]), sequence_of(name)
