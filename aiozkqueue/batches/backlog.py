"""The messages of a queue that a ledger can take: those that no consumer holds, in order."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.layout import HOUR, BundleName, ItemRef, hour_at, match_due
from aiozkqueue.operations.listing import collect_children, locked_ids, seen
from aiozkqueue.operations.stats import lanes, put_into, stat_lanes
from aiozkqueue.queue.candidates.batches import is_closed
from aiozkqueue.queue.candidates.collectors import Earliest
from aiozkqueue.queue.runtime.acl_errors import translate_denials
from aiozkqueue.queue.runtime.strings import Strings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Stat


class Frozen(NamedTuple):
    """The items at a moment of ZooKeeper's time, in ms: for each lane, those before a sequence."""

    moment: int
    ends: Mapping[str, int]


class Children(NamedTuple):
    """The state of a folder's children: it is another one after a child was created or deleted."""

    folder: int
    """The transaction that created the folder."""
    version: int

    @classmethod
    def of(cls, stat: Stat | None) -> Children:
        """Return the state that a stat shows."""
        return cls(-1, -1) if stat is None else cls(stat.czxid, stat.cversion)


class Exhausted(NamedTuple):
    """A folder in which no item was free. It is listed again when one may be."""

    children: Children
    locks: Children | None
    """The locks when some of its items were locked; None: none was."""
    due: int | None
    """The first moment at which one of its items will be due, in ms."""


class Backlog:
    """Lists the free items of a queue. Folders without any are listed again only when that may have changed."""

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
        self._frozen = Frozen(now, {lane: put_into(stat) for lane, stat in stats.items()})
        self._exhausted.clear()

    async def free(self, limit: int, wanted: Callable[[list[str]], list[str]]) -> list[str]:
        """List up to ``limit`` unlocked items and bundles, the most urgent and oldest first, lane by lane.

        Items of a batch that was incomplete when the locks were listed are left to a later list. A batch begun since
        then is found among the last items, because it was put last. A folder of scheduled items is listed if it has a
        due one, but not while there are other items, unless the list before has not looked there.
        """
        handle, paths = self._handle, self._handle.paths
        now = await handle.runtime.server_clock.learned(paths.due)
        moment = now if self._frozen is None else self._frozen.moment
        folders = [folder for folder in await lanes(handle) if _begins(paths.place_of(folder)) <= moment]
        stats = await self._stats([paths.locks, *folders])
        locks = Children.of(stats[0])
        pending = {
            folder: Children.of(stat)
            for folder, stat in zip(folders, stats[1:], strict=True)
            if self._may_have(folder, Children.of(stat), locks, moment)
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
            names, examined = await self._list(folder, limit - len(free), now)
            if names:
                free += wanted(names)
            else:
                self._exhausted[folder] = Exhausted(children, locks if examined.hidden else None, examined.due)
            if len(free) >= limit:
                break
        self._later_postponed = False
        return free

    async def _stats(self, folders: Collection[str]) -> list[Stat | None]:
        with translate_denials(self._handle.name):
            return await asyncio.gather(*map(self._handle.zookeeper.exists, folders))

    def _may_have(self, folder: str, children: Children, locks: Children, moment: int) -> bool:
        """Whether a folder may have free items."""
        known = self._exhausted.get(folder)
        return (
            known is None
            or known.children != children
            or known.locks not in {None, locks}
            or (known.due is not None and known.due <= moment)
        )

    async def _list(self, folder: str, limit: int, now: int) -> tuple[list[str], _Examined]:
        """Return the places of free items, and what hides the others."""
        handle, frozen = self._handle, self._frozen
        end = None if frozen is None else frozen.ends.get(folder, 0)
        moment = now if frozen is None else frozen.moment
        examined = _Examined(handle.state, self._locked, moment, now, end)
        listed = await collect_children(handle, folder, partial(Earliest, limit, examined.passes))
        place = handle.paths.place_of(folder)
        every = listed.names()
        names = await seen(handle, every)
        examined.hidden |= len(names) < len(every)
        return [ItemRef(place, name).path for name in names], examined


class _Examined:
    """Tests the names of a folder, and remembers what may free the items that do not pass."""

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
        self.due: int | None = None
        """The first moment at which an item will be due, in ms."""

    def passes(self, name: str) -> bool:
        """Whether an item or a bundle is free."""
        scheduled = match_due(name)
        if scheduled is not None and int(scheduled[1]) > self._moment:  # the others need not be parsed
            due = int(scheduled[1])
            self.due = due if self.due is None else min(self.due, due)
            return False
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
