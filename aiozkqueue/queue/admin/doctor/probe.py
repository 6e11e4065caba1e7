"""The facts behind a diagnosis, read from the servers. All that is written is one ephemeral znode, for a few moments.

Nothing is locked while it reads, and a busy queue changes meanwhile: what looks wrong is looked at a second time.
"""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import AccessDeniedError, InvalidNameError, PayloadError
from aiozkqueue.layout import (
    ClientPaths,
    QueuePaths,
    check_queue_name,
    parse_lock,
    parse_meta,
)
from aiozkqueue.queue.admin.batch_writers import writers
from aiozkqueue.queue.admin.orphans import bad_locks, old_clients, orphan_metas, stray_dues
from aiozkqueue.queue.admin.stats import put_into
from aiozkqueue.queue.candidates.tag_records import bad_records
from aiozkqueue.queue.state.queue_state import configuration_of
from aiozkqueue.zookeeper import (
    PAGE,
    Create,
    Delete,
    MultiError,
    NoAuthError,
    NoNodeError,
    Permission,
    SetData,
    Stat,
    below,
)

from .diagnosis import Diagnosis, EnsembleFacts, FolderFacts, Latency, QueueFacts, ServerFacts, diagnose
from .lane_summary import LaneFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiozkqueue.layout import QueueConfig
    from aiozkqueue.queue.commit.runtime import Runtime

#: Round trips measured of each kind.
ROUND_TRIPS: Final = 20
#: Children of one folder whose ACLs are looked at.
ACL_SAMPLE: Final = 200
#: Seconds after which a pin is told of: no audit takes so long.
OLD_PIN: Final = 86_400
#: Children of one folder that are looked at for what keeps their messages from being handled.
OBSTACLE_SAMPLE: Final = 1000
_CHANGES: Final = Permission.ALL & ~Permission.READ
_VERSION: Final = re.compile(r"^Zookeeper version: ([^\s,]+)", re.MULTILINE)
_MODE: Final = re.compile(r"^Mode: (\S+)", re.MULTILINE)


async def examine(engine: Runtime, names: Sequence[str]) -> Diagnosis:
    """Read the facts of the servers and of these queues (of all, when none is named), and judge them."""
    return await _Examination(engine).run(names)


class _Examination:
    """One reading of everything."""

    def __init__(self, engine: Runtime) -> None:
        self._engine = engine
        self._zookeeper = engine.zookeeper
        self._root = engine.root
        self._now = engine.clock.time()  # by the leader's clock, as soon as a write has told it

    async def run(self, names: Sequence[str]) -> Diagnosis:
        zookeeper = self._zookeeper
        await zookeeper.sync("/")
        read = Latency.of([await self._time_read() for _ in range(ROUND_TRIPS)])
        write, offset = await self._time_writes()
        self._now = self._engine.clock.time() + (offset or 0.0)
        clients = ClientPaths(self._root, "-").clients
        folders = [f"{clients}/{name}" for name in await below(self._zookeeper, clients)]
        slots = [f"{folder}/{slot}" for folder in folders[:ACL_SAMPLE] for slot in await below(self._zookeeper, folder)]
        open_to_all, readable = await self._acls([self._root, clients, *folders[:ACL_SAMPLE], *slots])
        ensemble = EnsembleFacts(
            servers=await self._servers(),
            session_timeout=zookeeper.session_timeout,
            request_limit=zookeeper.max_request,
            read=read,
            write=write,
            clock_offset=offset,
            authenticated=zookeeper.authenticated,
            old_slots=len(await old_clients(zookeeper, self._root, self._now)),
            open_to_all=open_to_all,
            readable_by_all=readable,
        )
        return diagnose(ensemble, [await self._queue(name) for name in names or await self._queues()])

    # -- the servers

    async def _servers(self) -> list[ServerFacts]:
        answers = await self._zookeeper.ask_servers("srvr")
        return [
            ServerFacts(address, answer is not None, _first(_VERSION, answer), _first(_MODE, answer))
            for address, answer in answers.items()
        ]

    async def _time_read(self) -> float:
        begun = self._engine.clock.monotonic()
        await self._zookeeper.exists("/")
        return self._engine.clock.monotonic() - begun

    async def _time_writes(self) -> tuple[Latency | None, float | None]:
        """Write to an ephemeral znode of our own; by its time, also how far the leader's clock is from ours."""
        clock, zookeeper = self._engine.clock, self._zookeeper
        clients = ClientPaths(self._root, "-").clients
        path = f"{clients}/doctor-{self._engine.ids.next()}"
        try:
            await zookeeper.ensure(clients)
            await zookeeper.multi([Create(path, ephemeral=True)])
        except NoAuthError:
            return None, None
        except MultiError as error:
            if isinstance(error.error, NoAuthError):
                return None, None
            raise
        trips: list[float] = []
        offsets: list[float] = []
        try:
            for _ in range(ROUND_TRIPS):
                begun, local = clock.monotonic(), clock.time()
                results = await zookeeper.multi([SetData(path, b"")])
                trips.append(clock.monotonic() - begun)
                if isinstance(results[0], Stat):
                    offsets.append(results[0].mtime / 1000 - (local + trips[-1] / 2))
        finally:
            await zookeeper.multi([Delete(path)])
        quickest = trips.index(min(trips))  # the nearest to the truth
        return Latency.of(trips), offsets[quickest]

    # -- a queue

    async def _queues(self) -> list[str]:
        return [name for name in sorted(await below(self._zookeeper, self._root)) if await self._is_queue(name)]

    async def _is_queue(self, name: str) -> bool:
        try:
            check_queue_name(name)
        except InvalidNameError:
            return False
        return await self._stat(QueuePaths(self._root, name).items) is not None

    async def _queue(self, name: str) -> QueueFacts:
        paths = QueuePaths(self._root, name)
        try:
            data, _ = await self._zookeeper.read(paths.base)
            return await self._examine(paths, configuration_of(paths, data))
        except NoNodeError:
            return QueueFacts(name=name, exists=False)
        except (NoAuthError, AccessDeniedError) as error:
            return QueueFacts(name=name, trouble=f"this user may not read it: {error}")
        except PayloadError as error:
            return QueueFacts(name=name, trouble=str(error))

    async def _examine(self, paths: QueuePaths, config: QueueConfig) -> QueueFacts:
        # In this order: whatever is left over is listed before that without which it is left over.
        zookeeper = self._zookeeper
        metas = await below(zookeeper, paths.metas)
        dues = await below(zookeeper, paths.due)
        locks = await below(zookeeper, paths.locks)
        hours = [f"later/{hour}" for hour in await below(zookeeper, paths.later)] if config.scheduled else []
        wanted = {lock for name in locks if (lock := parse_lock(name)) is not None}
        known = {message_id for name in metas if (message_id := parse_meta(name)) is not None}
        lanes = {
            paths.at(lane): await self._look_through(paths.at(lane), partial(LaneFacts, wanted, known, OBSTACLE_SAMPLE))
            for lane in (*config.lanes, *hours)
        }
        dead, consumers = await below(zookeeper, paths.dlq), await below(zookeeper, paths.consumers)
        folders = {paths.metas: metas, paths.due: dues, paths.locks: locks, paths.dlq: dead, paths.consumers: consumers}
        lockable = {lock for lane in lanes.values() for lock in lane.locked}
        ids = {message_id for lane in lanes.values() for message_id in lane.met}
        samples_of_lanes = {path: lane.sample for path, lane in lanes.items()}
        messages = {**samples_of_lanes, paths.metas: metas}
        obstructed, sealed = await self._obstacles(
            [f"{folder}/{name}" for folder, names in messages.items() for name in names[:OBSTACLE_SAMPLE]]
        )
        bad = await bad_locks(self._zookeeper, paths, locks, self._now, lockable)
        listed = {**samples_of_lanes, **folders}
        samples = [f"{folder}/{name}" for folder, names in listed.items() for name in names[:ACL_SAMPLE]]
        open_to_all, readable = await self._acls([paths.base, paths.lanes, *listed, *samples])
        return QueueFacts(
            name=paths.name,
            lanes=[await self._folder(path, lane.count, lane.size) for path, lane in lanes.items()],
            folders=[
                await self._folder(path, len(names), sum(len(name.encode()) + 4 for name in names))
                for path, names in folders.items()
            ],
            put_lanes=[paths.at(lane) for tier in config.tiers for lane in tier.put_lanes],
            generations=max(len(shard) for tier in config.tiers for shard in tier.shard_lanes),
            size=sum(lane.items for lane in lanes.values()),
            consumers=len(consumers),
            dead_letters=len(dead),
            foreign=[name for lane in lanes.values() for name in lane.foreign],
            endless_locks=[left.name for left in bad.endless],
            unannounced_locks=[left.name for left in bad.unannounced],
            vain_locks=[left.name for left in bad.vain],
            overdue=bad.overdue,
            stray_dues=await stray_dues(self._zookeeper, paths, dues),
            orphan_metas=[left.name for left in await orphan_metas(self._zookeeper, paths, metas, ids)],
            obstructed=obstructed,
            sealed=sealed,
            bad_tags=await bad_records(self._zookeeper, paths, OBSTACLE_SAMPLE),
            unfinished=await writers(self._engine, self._engine.store(paths.name)),
            now=datetime.fromtimestamp(self._now, UTC),
            old_pins=[pin for pin in await below(zookeeper, paths.pins) if await self._is_old(paths.pin(pin))],
            open_to_all=open_to_all,
            readable_by_all=readable,
        )

    async def _look_through(self, path: str, collector: Callable[[], LaneFacts]) -> LaneFacts:
        try:
            return await self._zookeeper.children_into(path, collector)
        except NoNodeError:
            return collector()

    async def _folder(self, path: str, count: int, size: int) -> FolderFacts:
        stat = await self._stat(path)
        return FolderFacts(path, count, size, 0 if stat is None else put_into(stat))

    async def _is_old(self, path: str) -> bool:
        stat = await self._stat(path)
        return stat is not None and stat.mtime < (self._now - OLD_PIN) * 1000

    # -- reading

    async def _stat(self, path: str) -> Stat | None:
        return await self._zookeeper.exists(path)

    async def _acls(self, paths: Sequence[str]) -> tuple[list[str], list[str]]:
        """Which of these everybody may change, and which only read; nothing when no credentials could be asked for."""
        open_to_all: list[str] = []
        readable: list[str] = []
        if not self._zookeeper.authenticated:
            return open_to_all, readable
        for start in range(0, len(paths), PAGE):
            page = paths[start : start + PAGE]
            for path, granted in zip(page, await asyncio.gather(*map(self._granted_to_all, page)), strict=True):
                if granted & _CHANGES:
                    open_to_all.append(path)
                elif granted & Permission.READ:
                    readable.append(path)
        return open_to_all, readable

    async def _obstacles(self, paths: Sequence[str]) -> tuple[list[str], list[str]]:
        """Which of these have znodes below them, and which this user may not read."""
        obstructed: list[str] = []
        sealed: list[str] = []
        for start in range(0, len(paths), PAGE):
            page = paths[start : start + PAGE]
            stats = await asyncio.gather(*map(self._stat, page), return_exceptions=True)
            for path, stat in zip(page, stats, strict=True):
                if isinstance(stat, NoAuthError):
                    sealed.append(path)
                elif isinstance(stat, BaseException):
                    raise stat
                elif stat is not None and stat.num_children:
                    obstructed.append(path)
        return obstructed, sealed

    async def _granted_to_all(self, path: str) -> Permission:
        granted = Permission(0)
        try:
            entries = await self._zookeeper.acl(path)
        except (NoNodeError, NoAuthError):  # gone meanwhile; or closed even to us
            return granted
        for entry in entries:
            if entry.scheme == "world":
                granted |= entry.permissions
        return granted


def _first(pattern: re.Pattern[str], answer: str | None) -> str | None:
    match = pattern.search(answer or "")
    return None if match is None else match[1]
