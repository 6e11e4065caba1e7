"""The figures of a queue."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.layout import (
    EMPTY_HEADER,
    HOUR,
    Header,
    ItemName,
    LockRecord,
    MalformedError,
    StoredConfig,
    decode,
    hour_named,
    is_deleted,
    item_node,
    lane_at,
    parse_hour,
    priority_of,
    read_removed,
)
from aiozkqueue.layout.compaction import compaction_key
from aiozkqueue.moments import moment_at
from aiozkqueue.queue.candidates.groups import is_group, lock_id
from aiozkqueue.queue.message import Content
from aiozkqueue.queue.state.stored_queue import configuration_of
from aiozkqueue.runtime.acl_errors import translate_denials
from aiozkqueue.runtime.strings import Strings, clear_gradually
from aiozkqueue.zookeeper import NoNodeError

from .budget import BUDGET, Budget
from .bundles import Bundled, count_bundled, count_put_more
from .earlier_locks import held_by_earlier_locks
from .ended_locks import count_ended
from .ledgers import count_ledgers
from .listing import closed_stages, list_children, locked_ids, walk
from .oldest import oldest_waiting
from .refusals import Refusals, kept
from .shown_time import shown_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import datetime

    from aiozkqueue.errors import AccessDeniedError
    from aiozkqueue.layout import QueuePaths
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Node, Stat


log: Final = logging.getLogger(__name__)

#: Folders that are read in one request.
PAGE: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """The figures of a queue. They are read one after the other, not at one moment.

    `size` is the sum of `waiting`, `in_flight` and `delayed`; `delayed` is the sum of `retrying` and `scheduled`.
    """

    queue: str
    size: int
    """All messages of the queue."""
    in_flight: int
    """Messages that a transaction, a delivery or a ledger holds."""
    retrying: int
    """Messages that were delivered before and become available at a known time, after a failure or a lease."""
    scheduled: int
    """Messages that were put with a due time that has not come."""
    dead_letters: int
    consumers: int
    """Sessions that take from it."""
    oldest: datetime | None
    """The time since which the oldest waiting message waits, in ZooKeeper's time: its put, or the end of its delay.
    None: no message waits, or none that this user may read."""
    oldest_age: float | None = None
    """How long that message has waited, seconds, by ZooKeeper's time; by this machine's clock if this user may not
    write below the root. None as `oldest`."""
    groups: int = 0
    """Groups that have messages here; an ordered queue with messages is one."""
    groups_held: int = 0
    """Groups that a transaction or delivery holds, or that wait for a retry. Each counts as one message in
    ``in_flight`` and ``retrying``."""
    unique_keys: int = 0
    """Unique keys in use by messages that wait or are being handled."""
    duplicates: int = 0
    """Messages that a newer one of their key would replace if they were taken now (`QueueConfig.collapse`)."""
    expired: int = 0
    """Expired messages that have not been removed yet, in queues with `QueueConfig.ttl`."""
    max_size: int | None = None
    """The maximum number of messages; None: unlimited."""
    waiting_producers: int = 0
    """Sessions that wait for capacity to put."""
    put: int = 0
    """Messages ever put: two readings give a rate. It only rises until the queue is deleted, apart from messages that
    are put or returned during the reading. A message that is put back or stored at another time or priority counts
    again, and so do the messages of a bundle whose consumer died."""
    removed: int = 0
    """Those of them that are no longer in the queue."""
    paused: bool = False
    """Whether it is paused, so that nothing is claimed (`QueueConfig.paused`)."""
    ledgers: int = 0
    """Streams that hold messages for a batch; these are ``in_flight`` until the batch is done."""
    staged: int = 0
    """Incomplete batches. Their messages count in ``size`` and ``waiting``, but cannot be taken yet."""

    priorities: Mapping[int, int] = field(default_factory=dict[int, int])
    """Messages by priority, except those put with a delay; empty for a queue that has only used priority 0."""
    bound: int = 0
    """Messages that only the node that put them may take (`QueueConfig.affinity`)."""
    tags: int = 0
    """Tag combinations stored for its messages."""
    records: int = 0
    """Records of ended messages, in queues with `QueueConfig.history`."""

    incomplete: tuple[str, ...] = ()
    """The names of figures that the time budget cut short; each covers the part read. Empty: all are complete."""
    unreadable: Mapping[str, str] = field(default_factory=dict[str, str])
    """The names of figures that leave out something that this user may not read, each with the reason."""

    @property
    def delayed(self) -> int:
        """Messages that can only be taken later: retrying and scheduled ones."""
        return self.retrying + self.scheduled

    @property
    def waiting(self) -> int:
        """Messages that can be taken now."""
        return max(0, self.size - self.in_flight - self.delayed)

    @property
    def remaining_capacity(self) -> int | None:
        """The number of messages that can still be put; None: unlimited."""
        return None if self.max_size is None else max(0, self.max_size - self.size)


async def count(handle: QueueHandle[Runtime], path: str, unreadable: list[AccessDeniedError] | None = None) -> int:
    """Count the children of a znode of a queue, without listing them. See `stat_folders`; raises: AccessDeniedError."""
    found: dict[str, Stat] = {}
    await stat_folders(handle, [path], found, unreadable)
    return found[path].num_children if found else 0


async def configuration(handle: QueueHandle[Runtime]) -> StoredConfig | None:
    """Read the configuration of a queue without creating anything; None if the queue does not exist.

    Raises: AccessDeniedError, PayloadError.
    """
    try:
        with translate_denials(handle.name):
            data, _ = await handle.zookeeper.read(handle.paths.base)
    except NoNodeError:
        return None
    return None if is_deleted(data) else configuration_of(handle.paths, data)


async def lanes(handle: QueueHandle[Runtime]) -> list[str]:
    """Return the paths of all folders that may hold items of a queue, without creating anything."""
    return await lanes_of(handle, await configuration(handle))


async def lanes_of(
    handle: QueueHandle[Runtime], config: StoredConfig | None, unreadable: list[AccessDeniedError] | None = None
) -> list[str]:
    """Return the paths of all folders that may hold items of a queue with this configuration; see `configuration`.

    With ``unreadable``, leave out the hours that this user may not list, and add the error to it.
    """
    if config is None:
        return [] if handle.state.dialect is None else [handle.paths.items]
    found = [handle.paths.at(lane) for lane in config.lanes]
    if config.scheduled:
        later = handle.paths.later
        with kept(unreadable):
            found += [f"{later}/{hour}" for hour in sorted(await list_children(handle, later))]
    return found


async def stat_lanes(
    handle: QueueHandle[Runtime], unreadable: list[AccessDeniedError] | None = None
) -> dict[str, Stat]:
    """Read the stat of each of the `lanes` of a queue, without listing any. See `lanes_of` for ``unreadable``.

    Raises: as `configuration`.
    """
    found: dict[str, Stat] = {}
    folders = await lanes_of(handle, await configuration(handle), unreadable)
    await stat_folders(handle, folders, found, unreadable)
    return found


async def read_folders(
    handle: QueueHandle[Runtime],
    config: StoredConfig | None,
    found: dict[str, Stat],
    listed: Callable[[QueueHandle[Runtime], StoredConfig | None], Awaitable[Sequence[str]]] = lanes_of,
    unreadable: list[AccessDeniedError] | None = None,
) -> int:
    """Read the stats of the folders that may hold items; return the number of messages put into folders that are gone.

    An hour that is removed meanwhile is counted once. With ``unreadable``, leave out the folders that this user may not
    read, and add their errors to it; ``listed`` has to do the same.

    Raises: as `lanes`.
    """
    before, gone = -1, await _count_gone(handle, config, unreadable)
    while gone != before:
        found.clear()
        await stat_folders(handle, await listed(handle, config), found, unreadable)
        before, gone = gone, await _count_gone(handle, config, unreadable)
    return gone


async def _count_gone(
    handle: QueueHandle[Runtime], config: StoredConfig | None, unreadable: list[AccessDeniedError] | None
) -> int:
    """Count the messages put into past hours that were removed, and into generations that were given up."""
    zookeeper, paths = handle.zookeeper, handle.paths
    if config is None:
        return 0
    gone = 0
    if config.scheduled:
        with kept(unreadable), suppress(NoNodeError), translate_denials(handle.name):
            gone += read_removed((await zookeeper.read(paths.later)).data)
    if config.has_dropped_generations:
        with kept(unreadable):
            names = await list_children(handle, paths.lanes)
            former = {paths.items, *(f"{paths.lanes}/{name}" for name in names)}.difference(map(paths.at, config.lanes))
            found: dict[str, Stat] = {}
            await stat_folders(handle, sorted(former), found, unreadable)
            gone += sum(stat.children_created for stat in found.values())
    return gone


async def stat_folders(
    handle: QueueHandle[Runtime],
    folders: Sequence[str],
    found: dict[str, Stat],
    unreadable: list[AccessDeniedError] | None = None,
) -> None:
    """Read the stat of each existing folder into a dictionary, some at a time.

    The stats do not count a folder of the queue that is among the messages or locks of another program. With
    ``unreadable``, leave out the folders that this user may not read, and add their errors to it.
    """
    stats: dict[str, Stat | None] = {}

    async def read(path: str) -> None:
        with kept(unreadable), translate_denials(handle.name):
            stats[path] = await handle.zookeeper.exists(path)

    for start in range(0, len(folders), PAGE):
        page = folders[start : start + PAGE]
        among = {inner: folder for folder in page for inner in handle.paths.folders_among(folder)}
        await asyncio.gather(*map(read, [*page, *among]))
        found.update((folder, stat) for folder in page if (stat := stats.get(folder)) is not None)
        for inner, folder in among.items():
            if stats.get(inner) is not None and (outer := found.get(folder)) is not None:
                # As if that folder were removed: `children_created` stays, because a move needs it as a counter.
                found[folder] = outer._replace(num_children=max(0, outer.num_children - 1), cversion=outer.cversion + 1)


def znodes_of(stats: Mapping[str, Stat]) -> dict[str, int]:
    """Return the number of znodes in each folder."""
    return {folder: stat.num_children for folder, stat in stats.items()}


async def size(handle: QueueHandle[Runtime]) -> int:
    """Count the messages in all lanes; what this user may not read is left out, with a warning in the log.

    Raises: AccessDeniedError, PayloadError: the configuration cannot be read.
    """
    config = await configuration(handle)
    found: dict[str, Stat] = {}
    refused: list[AccessDeniedError] = []
    await stat_folders(handle, await lanes_of(handle, config, refused), found, refused)
    number = sum(stat.num_children for stat in found.values())
    if config is not None and config.bundled:
        with kept(refused):
            number += sum((await count_bundled(handle, znodes_of(found), refused)).more.values())
    if refused:
        msg = "queue %s: the size leaves out what this user may not read: %s"
        log.warning(msg, handle.name, refused[0], extra={"queue": handle.name})
    return number


async def stats(handle: QueueHandle[Runtime], seconds: float = BUDGET) -> QueueStats:
    """Read a queue's figures; `QueueStats.incomplete` names those that could not be read within this time.

    `QueueStats.unreadable` names those that leave out something unreadable.

    Raises: AccessDeniedError, PayloadError: the configuration cannot be read.
    """
    budget = Budget(seconds)
    paths = handle.paths
    if await handle.state.is_marked():
        return QueueStats(
            queue=handle.name,
            size=0,
            in_flight=0,
            retrying=0,
            scheduled=0,
            dead_letters=0,
            consumers=0,
            oldest=None,
        )
    config = await configuration(handle)
    refusals = Refusals()
    counts = await asyncio.gather(
        *(count_for(handle, path, refusals, figures) for path, figures in counted_folders(paths))
    )
    locks, due, dead, consumers, waiting, keys, tags = counts
    reader = _FigureReader(handle, config)
    incomplete: set[str] = set()
    for read, figures in reader.parts(timed_locks=bool(due)):
        with refusals.of(*figures) as reader.unreadable:
            if not await budget.allows(read()):
                incomplete.update(figures)
    return QueueStats(
        queue=handle.name,
        size=sum(reader.held.values()),
        in_flight=max(0, locks - due - reader.staged + reader.bundled.in_flight),
        retrying=max(0, due - reader.ended),
        scheduled=reader.scheduled,
        dead_letters=dead,
        consumers=consumers,
        oldest=reader.oldest,
        oldest_age=reader.oldest_age,
        groups=reader.named.groups,
        groups_held=reader.named.groups_held,
        unique_keys=keys,
        duplicates=reader.named.duplicates,
        expired=reader.named.expired,
        max_size=None if config is None else config.max_size or None,
        waiting_producers=waiting,
        put=reader.put,
        removed=max(0, reader.put - sum(reader.held.values())),
        paused=config is not None and bool(config.paused),
        ledgers=reader.ledgers,
        staged=reader.staged,
        priorities=_by_priority(reader.held, f"{paths.later}/"),
        bound=reader.named.bound,
        tags=tags,
        records=reader.records,
        incomplete=tuple(figure.name for figure in fields(QueueStats) if figure.name in incomplete),
        unreadable=refusals.figures,
    )


def counted_folders(paths: QueuePaths) -> list[tuple[str, tuple[str, ...]]]:
    """Return the folders whose children are counted, and the figures that depend on each."""
    return [
        (paths.locks, ("in_flight",)),
        (paths.due, ("in_flight", "retrying")),
        (paths.dlq, ("dead_letters",)),
        (paths.consumers, ("consumers",)),
        (paths.waiting, ("waiting_producers",)),
        (paths.keys, ("unique_keys",)),
        (paths.filters, ("tags",)),
    ]


async def count_for(handle: QueueHandle[Runtime], path: str, refusals: Refusals, figures: Sequence[str]) -> int:
    """Count the children of a folder; if this user may not read it, add the refusal to these figures."""
    refused: list[AccessDeniedError] = []
    number = await count(handle, path, refused)
    refusals.add(refused, figures)
    return number


class _FigureReader:
    """Reads the figures from the lanes, history and ledgers of a queue; each part can be cut short."""

    def __init__(self, handle: QueueHandle[Runtime], config: StoredConfig | None) -> None:
        self._handle = handle
        self._runtime = handle.runtime
        self._state = handle.state
        self._config = config
        self._found: dict[str, Stat] = {}
        self.oldest: datetime | None = None
        self.oldest_age: float | None = None
        self._put_more = 0
        self._put_into_gone = 0
        self.scheduled = 0
        self.ended = 0
        self.staged = 0
        self.ledgers = 0
        self.records = 0
        self.named = _Named()
        self.unreadable: list[AccessDeniedError] = []
        """The errors of the part that is being read."""
        self.bundled = Bundled({}, 0)

    def parts(self, *, timed_locks: bool) -> list[tuple[Callable[[], Awaitable[None]], tuple[str, ...]]]:
        """Return a reader for each part, and the figures that it provides.

        The parts with the longest listings come last.
        """
        parts: list[tuple[Callable[[], Awaitable[None]], tuple[str, ...]]] = [
            (self._read_lanes, ("size", "put", "removed", "priorities")),
            (self._count_put_more, ("put", "removed")),
            (self._count_staged, ("staged", "in_flight")),
            (self._count_ledgers, ("ledgers",)),
            (self._count_records, ("records",)),
            (self._count_scheduled, ("scheduled",)),
            (self._find_oldest, ("oldest",)),
            (self._read_names, _Named._fields),
        ]
        if self._config is not None and self._config.bundled:
            parts.insert(1, (self._count_bundled, ("size", "in_flight")))
        if timed_locks:
            parts.insert(1, (self._count_ended, ("retrying",)))
        return parts

    @property
    def held(self) -> dict[str, int]:
        """The number of messages in each lane and in each hour."""
        more = self.bundled.more
        return {folder: stat.num_children + more.get(folder, 0) for folder, stat in self._found.items()}

    @property
    def put(self) -> int:
        """How many messages have been put into them."""
        created = sum(stat.children_created for stat in self._found.values())
        return created + self._put_into_gone + self._put_more

    @property
    def _used(self) -> list[str]:
        """The lanes and hours that have items."""
        return [folder for folder, number in self.held.items() if number]

    async def _read_lanes(self) -> None:
        self._put_into_gone = await read_folders(
            self._handle,
            self._config,
            self._found,
            partial(lanes_of, unreadable=self.unreadable),
            self.unreadable,
        )

    async def _count_put_more(self) -> None:
        self._put_more = await count_put_more(self._handle)

    async def _count_bundled(self) -> None:
        self.bundled = await count_bundled(self._handle, znodes_of(self._found), self.unreadable)

    async def _count_ended(self) -> None:
        self.ended = await count_ended(self._handle)

    async def _count_staged(self) -> None:
        self.staged = await count_staged(self._handle, self._config)

    async def _count_ledgers(self) -> None:
        self.ledgers = await count_ledgers(self._handle, self.unreadable)

    async def _count_records(self) -> None:
        if self._config is not None and self._config.history:
            self.records = await _count_records(self._handle)

    async def _count_scheduled(self) -> None:
        self.scheduled = await count_scheduled(self._handle, self.held)

    async def _find_oldest(self) -> None:
        oldest = await oldest_waiting(self._handle, self._config, self._used, self.unreadable)
        if oldest is not None:
            self.oldest = moment_at(oldest.since)
            self.oldest_age = max(0, await shown_time(self._runtime) - oldest.since) / 1000

    async def _read_names(self) -> None:
        self.named = await _read_names(self._handle, self._config, self._used)


def _by_priority(held: Mapping[str, int], later: str) -> dict[int, int]:
    """Sum the items in the lanes of each priority."""
    found = Counter[int]()
    for lane, number in held.items():
        if not lane.startswith(later):
            found[priority_of(lane)] += number
    return dict(sorted(found.items())) if len(found) > 1 else {}


async def _count_records(handle: QueueHandle[Runtime]) -> int:
    """Count the records of a history, without listing any."""
    hours = await list_children(handle, handle.paths.history)
    found: dict[str, Stat] = {}
    places = [handle.paths.record(hour) for hour in hours if parse_hour(hour) is not None]
    await stat_folders(handle, places, found)
    return sum(stat.num_children for stat in found.values())


class _Named(NamedTuple):
    """The figures that only item names provide."""

    groups: int = 0
    groups_held: int = 0
    duplicates: int = 0
    expired: int = 0
    bound: int = 0


def _is_over(item: ItemName, now: int) -> bool:
    return item.expires is not None and item.expires <= now


def _waits(item: ItemName, now: int, held: Strings) -> bool:
    """Whether an item is due, not expired and not held."""
    return not _is_over(item, now) and (item.due or 0) <= now and item.id not in held


async def _read_names(handle: QueueHandle[Runtime], config: StoredConfig | None, folders: Sequence[str]) -> _Named:
    """Count figures from item names; a queue whose configuration has no such feature is not listed."""
    if config is None:
        return _Named()
    sticky = config.affinity == "producer"
    if not (config.grouped or config.collapse or config.lifetime is not None or sticky):
        return _Named()
    held = await locked_ids(handle)
    by_earlier = await held_by_earlier_locks(handle, config, folders, held)
    now = await shown_time(handle.runtime)
    groups, held_groups, likes = Strings(), Strings(), Strings()
    duplicates = expired = bound = 0
    async for page in walk(handle, folders, ordered=False):
        for entry in page:
            if config.grouped and is_group(lock := lock_id(config, entry.item.text)):
                groups.add(lock)
                if lock in held or entry.item.id in held or entry.item.id in by_earlier:
                    held_groups.add(lock)
            expired += _is_over(entry.item, now)
            bound += sticky and item_node(entry.item.text) is not None
            like = compaction_key(entry.item) if config.collapse else None
            if like is not None and _waits(entry.item, now, held):
                place = f"{lane_at(entry.path)} {like}"
                duplicates += place in likes
                likes.add(place)
    figures = _Named(len(groups), len(held_groups), duplicates, expired, bound)
    await clear_gradually(*groups.parts, *held_groups.parts, *likes.parts, *held.parts)
    return figures


async def count_staged(handle: QueueHandle[Runtime], config: StoredConfig | None) -> int:
    """Count the incomplete batches; each has a lock."""
    return len(await closed_stages(handle)) if config is not None and config.staged else 0


async def count_scheduled(handle: QueueHandle[Runtime], held: Mapping[str, int]) -> int:
    """Count the messages whose time has not come, given the number in each lane. This lists the current hour only."""
    now, later, scheduled = await shown_time(handle.runtime), f"{handle.paths.later}/", 0
    for folder, number in held.items():
        hour = hour_named(folder.removeprefix(later))
        if hour is None or not number:
            continue
        if hour > now // HOUR:
            scheduled += number
        elif hour == now // HOUR:
            async for page in walk(handle, [folder], ordered=False):
                scheduled += sum(entry.item.due is not None and entry.item.due > now for entry in page)
    return scheduled


def due_of(item: ItemName, lock_id: str, lock: Node | None) -> int | None:
    """Return when an item can be taken, ms: the end of its lock, which has this id, or its due time.

    None: now, or when its holder decides.
    """
    record = None if lock is None else LockRecord.decode(lock.data)
    if record is None or (record.end is not None and is_group(lock_id) and record.claim != item.id):
        return item.due  # another message of its group waits
    return record.end


def content(state: QueueState, item: ItemName, node: Node, attempts: int) -> Content:
    """Return the content of an item; if its envelope does not decode, the stored bytes."""
    header: Header
    try:
        if state.dialect is not None and state.dialect.is_item(item.text):
            header = state.dialect.header_of(item.text)
            body = next(iter(state.dialect.messages(node.data)), b"")
        else:
            header, body = decode(node.data)
    except MalformedError:
        header, body = EMPTY_HEADER, node.data
    return Content(state.name, item.id, body, header, attempts, node.stat.ctime)
