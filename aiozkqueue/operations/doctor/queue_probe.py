"""The facts of one queue, read step by step. When the time is up, the facts are those of the completed steps.

Reading locks nothing, and a busy queue changes at the same time. Therefore every step lists possible leftovers before
the znodes that they depend on, and reads a suspected problem a second time.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from aiozkqueue.errors import AccessDeniedError
from aiozkqueue.layout import StoredConfig, parse_due, parse_lock
from aiozkqueue.moments import milliseconds_in
from aiozkqueue.operations.batch_writers import writers
from aiozkqueue.operations.bundles import claimed_bundles
from aiozkqueue.operations.orphans import bad_locks, orphan_dues, orphan_metas, record_id
from aiozkqueue.operations.tag_sweep import bad_records
from aiozkqueue.queue.commit.handle import QueueHandle
from aiozkqueue.runtime.strings import Names, clear_gradually
from aiozkqueue.zookeeper import (
    PAGE,
    Collector,
    Create,
    Delete,
    MultiError,
    NoAuthError,
    NoNodeError,
    QuotaExceededError,
    below,
)

from .acls import ACL_SAMPLE, open_znodes
from .facts import FolderFacts, QueueFacts
from .lane_summary import FolderNames, LaneFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aiozkqueue.layout import QueuePaths
    from aiozkqueue.operations.batch_writers import WriterInfo
    from aiozkqueue.operations.orphans import Locks
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.zookeeper import Stat

C = TypeVar("C", bound=Collector)

#: The age at which a pin is reported, seconds: no audit takes this long.
OLD_PIN: Final = 86_400
#: The maximum number of children of one folder that are checked for obstacles to the handling of their messages.
OBSTACLE_SAMPLE: Final = 1000


#: Where ZooKeeper stores its quotas, and the name of the znode with the limits of one path.
_QUOTAS: Final = "/zookeeper/quota"
_LIMITS: Final = "zookeeper_limits"


class _Leftovers:
    """The names of unused znodes that remain in a queue; there may be very many."""

    def __init__(self) -> None:
        self.foreign = Names()
        self.endless = Names()
        self.unannounced = Names()
        self.locks = Names()
        self.dues = Names()
        self.metas = Names()
        self.overdue = 0

    def add(self, locks: Locks) -> None:
        self.endless.extend(lock.name for lock in locks.endless)
        self.unannounced.extend(lock.name for lock in locks.unannounced)
        self.locks.extend(lock.name for lock in locks.orphans)
        self.overdue += locks.overdue


class QueueProbe:
    """One reading of one queue. ``now`` is the time by the leader's clock, seconds since 1970."""

    def __init__(self, runtime: Runtime, paths: QueuePaths, config: StoredConfig, now: float) -> None:
        self._runtime = runtime
        self._zookeeper = runtime.zookeeper
        self._paths = paths
        self._config = config
        self._now = now
        self._wanted_lanes: Sequence[str] = ()
        self._folders: dict[str, FolderNames] = {}
        self._folder_facts: list[FolderFacts] = []
        self._lanes: dict[str, LaneFacts] = {}
        self._lane_facts: list[FolderFacts] = []
        self._leftovers = _Leftovers()
        self._retrying = 0
        self._obstacles: tuple[list[str], list[str]] = ([], [])
        self._over_quota = False
        self._bad_tags: Sequence[str] = ()
        self._writers: Sequence[WriterInfo] = ()
        self._old_pins: Sequence[str] = ()
        self._open: tuple[list[str], list[str]] = ([], [])
        self._denied: list[str] = []

    async def run(self) -> None:
        """Read everything that this user may read. Raises: NoNodeError of the zookeeper package."""
        paths = self._paths
        collectors: dict[str, Callable[[], FolderNames]] = {
            paths.metas: partial(FolderNames, None, record_id),
            paths.due: FolderNames,
            paths.locks: partial(FolderNames, None, parse_lock),
            paths.dlq: partial(FolderNames, OBSTACLE_SAMPLE),
            paths.consumers: partial(FolderNames, OBSTACLE_SAMPLE),
        }
        for folder, collector in collectors.items():
            self._folders[folder] = FolderNames()
            with self._allowed():
                self._folders[folder] = await self._list(folder, collector)
        for folder, listed in self._folders.items():
            with self._allowed():
                stat = await self._zookeeper.exists(folder)
                self._folder_facts.append(_folder(folder, listed.count, listed.size, stat))
        self._retrying = await self._count_retrying()
        with self._allowed():
            self._writers = await writers(QueueHandle(self._runtime, self._runtime.queue_state(paths.name)))
        with self._allowed():
            pins = await below(self._zookeeper, paths.pins)
            self._old_pins = [pin for pin in pins if await self._is_old(paths.pin(pin))]
        self._over_quota = await self._is_over_quota()
        before = len(self._denied)
        await self._read_lanes()
        await self._judge(all_lanes=len(self._denied) == before)

    @contextmanager
    def _allowed(self) -> Iterator[None]:
        """Leave out the rest of the block if this user may not read something, and keep the reason."""
        try:
            yield
        except (NoAuthError, AccessDeniedError) as error:
            self._denied.append(str(error))

    def facts(self, *, complete: bool) -> QueueFacts:
        """Return the facts found so far."""
        paths, lanes = self._paths, self._lanes.values()
        return QueueFacts(
            name=paths.name,
            complete=complete,
            lanes_left=len(self._wanted_lanes) - len(self._lane_facts),
            lanes=self._lane_facts,
            folders=self._folder_facts,
            put_lanes=[paths.at(lane) for tier in self._config.tiers for lane in tier.put_lanes],
            generations=max(len(shard) for tier in self._config.tiers for shard in tier.shard_lanes),
            size=sum(lane.items for lane in lanes),
            delayed=self._retrying + sum(lane.scheduled for lane in lanes),
            max_size=self._config.max_size or None,
            paused=bool(self._config.paused),
            consumers=self._count(paths.consumers),
            dead_letters=self._count(paths.dlq),
            foreign=self._leftovers.foreign,
            endless_locks=self._leftovers.endless,
            unannounced_locks=self._leftovers.unannounced,
            orphan_locks=self._leftovers.locks,
            overdue=self._leftovers.overdue,
            orphan_dues=self._leftovers.dues,
            orphan_metas=self._leftovers.metas,
            obstructed=self._obstacles[0],
            unreadable=self._obstacles[1],
            over_quota=self._over_quota,
            bad_tags=self._bad_tags,
            unfinished=self._writers,
            now=datetime.fromtimestamp(self._now, UTC),
            old_pins=self._old_pins,
            open_to_all=self._open[0],
            readable_by_all=self._open[1],
            unread=list(dict.fromkeys(self._denied)),
        )

    async def _read_lanes(self) -> None:
        """List each lane and each hour that is not empty; `run` has listed their locks and records before."""
        paths, config = self._paths, self._config
        hours: list[str] = []
        if config.scheduled:
            with self._allowed():
                hours = [f"later/{hour}" for hour in await below(self._zookeeper, paths.later)]
        self._wanted_lanes = [paths.at(lane) for lane in (*config.lanes, *hours)]
        lock_ids, meta_ids = self._folders[paths.locks].ids, self._folders[paths.metas].ids
        ended, now = await self._ended_in_bundles(), milliseconds_in(self._now)
        new_lane = partial(LaneFacts, lock_ids, meta_ids, OBSTACLE_SAMPLE, ended, now)
        for start in range(0, len(self._wanted_lanes), PAGE):
            page = self._wanted_lanes[start : start + PAGE]
            stats = await asyncio.gather(*map(self._zookeeper.exists, page), return_exceptions=True)
            for path, stat in zip(page, stats, strict=True):
                try:
                    if isinstance(stat, BaseException):
                        raise stat
                    lane = await self._list(path, new_lane) if stat is not None and stat.num_children else new_lane()
                except NoAuthError as error:
                    self._denied.append(str(error))
                    continue
                self._lanes[path] = lane
                foreign = iter(lane.foreign)
                while part := list(islice(foreign, PAGE)):
                    self._leftovers.foreign.extend(part)
                    await asyncio.sleep(0)
                self._lane_facts.append(_folder(path, lane.count, lane.size, stat))

    async def _ended_in_bundles(self) -> dict[str, int]:
        """Return the number of ended messages of each bundle that was claimed; none if their records are denied."""
        if not self._config.bundled:
            return {}
        handle = QueueHandle(self._runtime, self._runtime.queue_state(self._paths.name))
        with suppress(AccessDeniedError):  # `doctor` reports unreadable records
            return {bundle: ended for bundle, (ended, _) in (await claimed_bundles(handle, [])).items()}
        return {}

    async def _list(self, path: str, collector: Callable[[], C]) -> C:
        try:
            return await self._zookeeper.children_into(path, collector)
        except NoNodeError:
            return collector()

    def _count(self, folder: str) -> int:
        return self._folders[folder].count if folder in self._folders else 0

    async def _count_retrying(self) -> int:
        """Return the number of messages that wait for the end of a timed lock, from the listed due nodes."""
        now, retrying = milliseconds_in(self._now), 0
        names = iter(self._folders[self._paths.due].names)
        while page := list(islice(names, PAGE)):
            retrying += sum((due := parse_due(name)) is not None and due[0] > now for name in page)
            await asyncio.sleep(0)
        return retrying

    async def _judge(self, *, all_lanes: bool) -> None:
        """Find leftovers, obstacles and znodes that are open to everyone, after the lanes have been listed.

        Whether a message is gone is known only if all lanes were listed.
        """
        zookeeper, paths = self._zookeeper, self._paths
        locks, metas, dues = (self._folders[folder].names for folder in (paths.locks, paths.metas, paths.due))
        # The lanes have removed the ids of their items from these sets.
        of_locks, of_metas = self._folders[paths.locks].ids, self._folders[paths.metas].ids
        with self._allowed():
            async for bad in bad_locks(zookeeper, paths, locks, self._now, of_locks if all_lanes else ()):
                self._leftovers.add(bad)
        with self._allowed():
            async for names in orphan_dues(zookeeper, paths, dues):
                self._leftovers.dues.extend(names)
        if all_lanes:
            with self._allowed():
                async for page in orphan_metas(zookeeper, paths, metas, lambda own: own is None or own in of_metas):
                    self._leftovers.metas.extend(record.name for record in page)
        await clear_gradually(*of_locks.parts, *of_metas.parts)
        samples = {path: lane.sample for path, lane in self._lanes.items()}
        messages = {**samples, paths.metas: metas}
        self._obstacles = await self._find_obstacles(
            [f"{folder}/{name}" for folder, names in messages.items() for name in names[:OBSTACLE_SAMPLE]]
        )
        with self._allowed():
            self._bad_tags = await bad_records(zookeeper, paths, OBSTACLE_SAMPLE)
        listed = {**samples, **{folder: listed.names for folder, listed in self._folders.items()}}
        children = [f"{folder}/{name}" for folder, names in listed.items() for name in names[:ACL_SAMPLE]]
        self._open = await open_znodes(zookeeper, [paths.base, paths.lanes, *listed, *children])

    async def _find_obstacles(self, paths: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the paths that have children, and the paths that this user may not read."""
        obstructed: list[str] = []
        unreadable: list[str] = []
        for start in range(0, len(paths), PAGE):
            page = paths[start : start + PAGE]
            # On older servers than ZooKeeper 3.9, `exists` needs no right to read.
            nodes = await asyncio.gather(*map(self._zookeeper.read, page), return_exceptions=True)
            for path, node in zip(page, nodes, strict=True):
                if isinstance(node, NoAuthError):
                    unreadable.append(path)
                elif isinstance(node, NoNodeError):
                    continue
                elif isinstance(node, BaseException):
                    raise node
                elif node.stat.num_children:
                    obstructed.append(path)
        return obstructed, unreadable

    async def _is_over_quota(self) -> bool:
        """Whether a quota of this queue refuses a new znode, which is removed in the request that creates it."""
        path = f"{self._paths.base}/doctor-{self._runtime.ids.next()}"
        try:
            await self._zookeeper.read(f"{_QUOTAS}{self._paths.base}/{_LIMITS}")
            await self._zookeeper.multi([Create(path, b"\0" * 64), Delete(path)])
        except (NoNodeError, NoAuthError):
            return False  # it has no quota, or this user may not read it
        except MultiError as error:
            return isinstance(error.error, QuotaExceededError)
        return False

    async def _is_old(self, path: str) -> bool:
        stat = await self._zookeeper.exists(path)
        return stat is not None and stat.mtime < (self._now - OLD_PIN) * 1000


def _folder(path: str, count: int, size: int, stat: Stat | None) -> FolderFacts:
    return FolderFacts(path, count, size, 0 if stat is None else stat.children_created)
