"""The messages of a queue that a ledger can take: those that no consumer holds, in order."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.layout import HOUR, BundleName, ItemRef, hour_at
from aiozkqueue.operations.listing import collect_children, locked_ids, seen
from aiozkqueue.operations.stats import lanes, stat_lanes
from aiozkqueue.queue.candidates.batches import is_closed
from aiozkqueue.queue.candidates.collectors import Earliest
from aiozkqueue.runtime.acl_errors import translate_denials
from aiozkqueue.runtime.strings import Strings

from .upcoming import Upcoming, due_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Stat


#: Items of an hour that are known before they are due.
UPCOMING: Final = 10_000
#: An hour that has changed is listed again after this many times the duration of its last listing.
AGAIN: Final = 10


class Frozen(NamedTuple):
    """The items at a moment of ZooKeeper's time, in ms: for each lane, those before a sequence."""

    moment: int
    ends: Mapping[str, int]


class Children(NamedTuple):
    """The state of a folder's children: each creation and deletion of a child changes it."""

    folder: int
    """The transaction that created the folder."""
    version: int

    @classmethod
    def of(cls, stat: Stat | None) -> Children:
        """Return the state that a stat shows."""
        return cls(-1, -1) if stat is None else cls(stat.czxid, stat.cversion)

    @classmethod
    def made(cls, stat: Stat | None) -> Children:
        """Return the state without deletions, which make no item free."""
        return cls(-1, -1) if stat is None else cls(stat.czxid, stat.children_created)


class Exhausted(NamedTuple):
    """A folder without other free items than those known. It is listed again when there may be some."""

    children: Children
    locks: Children | None
    """The locks when some of its items were locked; None: none was."""
    upcoming: Upcoming
    again: float = 0.0
    """The loop's time before which a change does not lead to another listing."""

    def may_have(self, children: Children, locks: Children, moment: int) -> bool:
        """Whether there may be free items."""
        if self.upcoming.due is not None and self.upcoming.due <= moment:
            return True
        changed = self.children != children or self.locks not in {None, locks}
        return changed and asyncio.get_running_loop().time() >= self.again


class Backlog:
    """Lists the free items of a queue. Folders without any are listed again only when that may have changed.

    An hour of scheduled items may hold a million, and changes with each put. So the items that are due next are known
    in advance, and the longer a listing takes, the later a change leads to another one.
    """

    def __init__(self, handle: QueueHandle[Runtime]) -> None:
        self._handle = handle
        self._exhausted: dict[str, Exhausted] = {}
        self._locks: Children | None = None
        self._locked = Strings()
        self._frozen: Frozen | None = None
        self._later_postponed = False

    async def freeze(self) -> None:
        """From now on, list only current items."""
        now = await self._handle.runtime.server_clock.learned(self._handle.paths.due)
        stats = await stat_lanes(self._handle)
        self._frozen = Frozen(now, {lane: stat.children_created for lane, stat in stats.items()})
        self._exhausted.clear()

    async def free(self, limit: int, wanted: Callable[[list[str]], list[str]]) -> list[str]:
        """List up to ``limit`` unlocked items and bundles, the most urgent and oldest first, lane by lane.

        Items of a batch that was incomplete when the locks were listed are left to a later list. A batch begun since
        then is found among the last items, because it was put last. A folder of scheduled items is listed if it has a
        due one, but not while there are other items, unless the previous listing has left it out.
        """
        handle, paths = self._handle, self._handle.paths
        now = await handle.runtime.server_clock.learned(paths.due)
        moment = self._moment(now)
        folders = [folder for folder in await lanes(handle) if _begins(paths.place_of(folder)) <= moment]
        stats = await self._stats([paths.locks, *folders])
        locks = Children.of(stats[0])
        pending = {
            folder: children
            for folder, children in zip(folders, map(Children.made, stats[1:]), strict=True)
            if (known := self._exhausted.get(folder)) is None or known.may_have(children, locks, moment)
        }
        if pending and (locks != self._locks or stats[0] is None):
            self._locked = await locked_ids(handle)
            self._locks = locks
        free: list[str] = []
        for folder, children in pending.items():
            later = hour_at(paths.place_of(folder)) is not None
            if later and free and not self._later_postponed:
                self._later_postponed = True
                return free
            list_folder = self._scheduled if later else self._list
            free += wanted(await list_folder(folder, children, limit - len(free), now))
            if len(free) >= limit:
                break
        self._later_postponed = False
        return free

    async def _stats(self, folders: Collection[str]) -> list[Stat | None]:
        with translate_denials(self._handle.name):
            return await asyncio.gather(*map(self._handle.zookeeper.exists, folders))

    async def _list(self, folder: str, children: Children, limit: int, now: int) -> list[str]:
        """Return the places of the first free items of a lane, and remember if there is none."""
        examined = self._examined(folder, now)
        listed = await collect_children(self._handle, folder, partial(Earliest, limit, examined.passes))
        names = await self._seen(listed.names(), examined)
        if not names:
            self._exhausted[folder] = Exhausted(children, self._locks if examined.hidden else None, Upcoming())
        return self._places(folder, names)

    async def _scheduled(self, folder: str, children: Children, limit: int, now: int) -> list[str]:
        """Return the places of the due and free items of an hour; list it if no known one is due."""
        examined, moment = self._examined(folder, now), self._moment(now)
        if (known := self._exhausted.get(folder)) is not None:
            names = [name for name in known.upcoming.take(moment, limit) if examined.passes(name)]
            if names:  # another client may be faster, and release an item again
                self._exhausted[folder] = known._replace(locks=self._locks)
                return self._places(folder, names)
        clock = asyncio.get_running_loop()
        began = clock.time()
        most = limit + UPCOMING
        listed = await collect_children(self._handle, folder, partial(Earliest, most, examined.keeps, due_of))
        every = listed.names()
        again = clock.time() + AGAIN * (clock.time() - began)
        upcoming = Upcoming(every, complete=len(every) < most)
        names = await self._seen(upcoming.take(moment, limit), examined)
        locks = self._locks if names or examined.hidden else None
        self._exhausted[folder] = Exhausted(children, locks, upcoming, again)
        return self._places(folder, names)

    def _examined(self, folder: str, now: int) -> _Examined:
        frozen = self._frozen
        end = None if frozen is None else frozen.ends.get(folder, 0)
        return _Examined(self._handle.state, self._locked, self._moment(now), now, end)

    def _moment(self, now: int) -> int:
        """Return the moment at which items must be due."""
        return now if self._frozen is None else self._frozen.moment

    async def _seen(self, every: list[str], examined: _Examined) -> list[str]:
        """Leave out the items of batches that have become incomplete."""
        names = list(await seen(self._handle, every))
        examined.hidden |= len(names) < len(every)
        return names

    def _places(self, folder: str, names: list[str]) -> list[str]:
        place = self._handle.paths.place_of(folder)
        return [ItemRef(place, name).path for name in names]


class _Examined:
    """Tests the names of a folder, and remembers the locks and times that may free the items that do not pass."""

    def __init__(
        self, state: QueueState, locked: Collection[str | None], moment: int, now: int, end: int | None
    ) -> None:
        self._state = state
        self._locked = locked
        self._moment = moment
        self._now = now
        self._end = end
        self.hidden = False
        """Whether a lock hides an item."""

    def keeps(self, name: str) -> bool:
        """Whether an item will be due later, or is free."""
        return due_of(name) > self._moment or self.passes(name)

    def passes(self, name: str) -> bool:
        """Whether an item or a bundle is free, if it is due."""
        bundle = BundleName.parse(name)
        if bundle is not None:
            own, sequence, lasts = bundle.id, int(bundle.digits), True
        else:
            item = self._state.parse_item(name)
            if item is None:
                return False
            own, sequence, lasts = item.id, item.sequence, item.expires is None or item.expires > self._now
        if not lasts or (self._end is not None and sequence >= self._end):
            return False
        if own in self._locked or is_closed(name, self._locked):
            self.hidden = True
            return False
        return True


def _begins(place: str) -> int:
    """Return the moment before which no item of a folder is due, in ms."""
    return HOUR * (hour_at(place) or 0)
