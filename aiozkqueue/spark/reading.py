"""A read of a queue, its dead letters or its history. It claims nothing, and is not atomic.

A large folder is divided among tasks by a hash of each name, so that a task has at most about `SHARE` messages. The
driver reads only the number of messages. It lists a folder only if there may be bundles. While the listing of a folder
arrives, each task keeps the names of its share. Then it reads the messages page by page. Memory therefore does not grow
with the folder. Messages that disappear before they are read are skipped. If a bundle is replaced by single items
during the read, its messages are read once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from zlib import crc32

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.layout import (
    LAST_MOMENT,
    SEQUENCE_DIGITS,
    BundledMessage,
    BundleName,
    HistoryRecord,
    ItemName,
    ItemRef,
    LockRecord,
    MalformedError,
    StoredConfig,
    decode,
    hour_of,
    is_bundle,
    name_at,
    parse_hour,
    parse_record,
)
from aiozkqueue.moments import milliseconds_at
from aiozkqueue.operations.bundles import bundle_pages, count_bundled
from aiozkqueue.operations.held import held_of_groups
from aiozkqueue.operations.listing import collect_children, list_children, seen
from aiozkqueue.operations.stats import configuration, due_of, lanes
from aiozkqueue.queue.candidates.collectors import Matching
from aiozkqueue.queue.candidates.groups import is_group
from aiozkqueue.queue.commit.unclaimed import attempts_of, find_pages, item_pages, read_all
from aiozkqueue.worker.heap import settled_heap
from aiozkqueue.zookeeper import PAGE

from .batching import Batches
from .bundle_arrays import ColumnarPage, ColumnarPart, are_bare
from .columns import RowLayout
from .connection import linked, require_queue
from .options import Content, Mode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from aiozkqueue.layout import Header
    from aiozkqueue.queue.commit.unclaimed import ItemSnapshot
    from aiozkqueue.queue.redelivery.bundles import BundleState

    from .connection import Link
    from .options import Options

    #: Messages with their properties, or bundles of them.
    PageValues: TypeAlias = list[dict[str, object]] | ColumnarPage

#: Approximate number of messages of a task. Each task lists its whole folder, so smaller shares cost the server more.
SHARE: Final = 100_000
_DAY: Final = 24 * 3600 * 1000
#: The number of names for which a task makes paths at a time.
TOGETHER: Final = 10_000


@dataclass
class FolderShare(InputPartition):
    """The names of a folder whose hash modulo ``of`` is ``share``."""

    folder: str
    share: int
    of: int
    ids: frozenset[str] | None
    """Only messages with these ids; None: all."""


@dataclass(frozen=True)
class PushedFilters:
    """The conditions of a filter that names and hours can decide."""

    ids: frozenset[str] | None = None
    first: str = ""
    """The first hour of history to read."""
    last: str = "~"

    def holds(self, folder: str) -> bool:
        """Whether a folder may contain matching messages."""
        hour = name_at(folder)
        return parse_hour(hour) is None or self.first <= hour <= self.last


class QueueReader(DataSourceReader):
    """Reads the messages. Created in the planner, and from a pickle in each task."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema = schema
        self._options = options
        self._pushed = PushedFilters()
        if options.mode is Mode.DEADLETTER:
            msg = "mode=deadletter: a batch read changes nothing; use PERMISSIVE or FAILFAST, or read a stream"
            raise InvalidOptionError(msg)
        self._of_message = RowLayout(schema, options).of_message  # refuses bad columns before any job runs

    def partitions(self) -> Sequence[FolderShare]:
        """Divide the folders into shares. Raises: NotFoundError, ConnectionLostError, AccessDeniedError."""
        with linked(self._options) as link:
            folders = [folder for folder in link.call(_folders, link) if self._pushed.holds(folder)]
            sizes = link.call(_sizes, link, folders) if self._pushed.ids is None else [0] * len(folders)
        least = -(-self._options.min_partitions // max(1, len(folders)))
        return [
            FolderShare(folder, share, shares, self._pushed.ids)
            for folder, size in zip(folders, sizes, strict=True)
            for shares in [max(least, -(-size // SHARE))]
            for share in range(shares)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a share. Raises: PayloadError, in the mode FAILFAST; ConnectionLostError, AccessDeniedError."""
        if not isinstance(partition, FolderShare):  # Spark makes a partition even if there are no folders
            return
        layout = RowLayout(self._schema, self._options)
        with settled_heap(collect=False), linked(self._options) as link:
            pages = _PAGES[self._options.content](link, partition, layout)
            batches = Batches(layout)
            for page in link.each_of(pages):
                yield from batches.add(page if isinstance(page, ColumnarPage) else layout.decode(page))
            yield from batches.finish()


class FilteringReader(QueueReader):
    """A reader that accepts filters. Spark rejects such a reader unless it is configured to push filters down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Use the filters that names and hours can decide. Spark checks every row again."""
        content = self._options.content
        for predicate in filters:
            attribute: tuple[str, ...] = getattr(predicate, "attribute", ())
            column = self._of_message.get(".".join(attribute))
            if column == "id" and isinstance(predicate, EqualTo | In):
                values = predicate.value if isinstance(predicate, In) else [predicate.value]
                ids = frozenset(value for value in values if value is not None)  # a null equals no id
                known = self._pushed.ids
                self._pushed = replace(self._pushed, ids=ids if known is None else ids & known)
            elif column == "ended_at" and content is Content.HISTORY:
                self._pushed = _narrowed(self._pushed, predicate)
        return filters


def _narrowed(pushed: PushedFilters, bound: Filter) -> PushedFilters:
    """Skip hours that are more than a day beyond a bound, so that no row is lost in any time zone."""
    if isinstance(bound, GreaterThan | GreaterThanOrEqual) and isinstance(bound.value, datetime):
        return replace(pushed, first=max(pushed.first, _hour(bound.value, -_DAY)))
    if isinstance(bound, LessThan | LessThanOrEqual) and isinstance(bound.value, datetime):
        return replace(pushed, last=min(pushed.last, _hour(bound.value, _DAY)))
    return pushed


def _hour(moment: datetime, more: int) -> str:
    """Return the hour ``more`` milliseconds after a moment, or the first or last hour if it is out of range."""
    return hour_of(min(max(0, milliseconds_at(moment) + more), LAST_MOMENT))


class _Locks(NamedTuple):
    """The configuration that says which locks items have, and the messages that the locks of groups hold."""

    config: StoredConfig
    held_of_groups: frozenset[str]

    def own(self, item: ItemSnapshot) -> ItemSnapshot:
        """Return an item without the lock of its group if that holds another message."""
        held = not is_group(item.lock_id) or item.id in self.held_of_groups
        return item if held else item._replace(lock=None)


async def _folders(link: Link) -> list[str]:
    await require_queue(link)
    paths = link.state.paths
    match link.options.content:
        case Content.ITEMS:
            return await lanes(link.handle)
        case Content.DEAD_LETTERS:
            return [paths.dlq]
        case Content.HISTORY:
            hours = await list_children(link.handle, paths.history)
            return [paths.record(hour) for hour in sorted(hours) if parse_hour(hour) is not None]


async def _sizes(link: Link, folders: Sequence[str]) -> list[int]:
    """Return the number of messages in each folder."""
    handle = link.handle
    config = await configuration(handle) if link.options.content is Content.ITEMS else None
    nodes = await read_all(handle, folders)
    znodes = {
        folder: 0 if node is None else node.stat.num_children for folder, node in zip(folders, nodes, strict=True)
    }
    more: Mapping[str, int] = {}
    if config is not None and config.bundled:
        more = (await count_bundled(handle, znodes)).more
    return [number + more.get(folder, 0) for folder, number in znodes.items()]


async def _share(link: Link, partition: FolderShare) -> list[str]:
    """Select names of a folder by their hashes, which are the same in every listing.

    Only the sequence number counts, so that a bundle and the single items that it becomes are in one share.
    """
    ids = partition.ids

    def ours(name: str) -> bool:
        return crc32(_order(name).encode()) % partition.of == partition.share and (ids is None or _may_hold(name, ids))

    listed = await collect_children(link.handle, partition.folder, lambda: Matching(ours))
    return sorted(await seen(link.handle, listed.names))


def _order(name: str) -> str:
    """Return the sequence number in the name of an item or a bundle."""
    return name[-SEQUENCE_DIGITS:]


def _may_hold(name: str, ids: frozenset[str]) -> bool:
    """Whether one of these messages is the item or record with this name, or may be in the bundle with this name."""
    bundle = BundleName.parse(name)
    return _id(name) in ids if bundle is None else any(map(bundle.may_hold, ids))


def _id(name: str) -> str | None:
    if (item := ItemName.parse(name)) is not None:
        return item.id
    record = parse_record(name)
    return None if record is None else record[1]


async def _items(link: Link, partition: FolderShare, layout: RowLayout) -> AsyncIterator[PageValues]:
    names, locks = await _share(link, partition), await _locks(link, layout)
    partial: dict[str, set[str]] = {}  # the messages that were read from incomplete bundles, by sequence number
    for start in range(0, len(names), TOGETHER):
        some = names[start : start + TOGETHER]
        async for rows in _singles(link, partition, layout, some, locks):
            yield rows
        async for found in _bundled(link, partition, layout, filter(is_bundle, some), partial):
            yield found
    if partial:  # some of these messages may have become single items since the folder was listed
        known = set(names)
        late = [
            name
            for name in await _share(link, partition)
            if name not in known and _order(name) in partial and _id(name) not in partial[_order(name)]
        ]
        async for rows in _singles(link, partition, layout, late, locks):
            yield rows


async def _locks(link: Link, layout: RowLayout) -> _Locks | None:
    """Read what is needed to read the locks of items; None: they are not read."""
    if not layout.reads_locks:
        return None
    config = await configuration(link.handle) or StoredConfig()
    return _Locks(config, await held_of_groups(link.handle, config))


async def _singles(
    link: Link, partition: FolderShare, layout: RowLayout, names: Iterable[str], locks: _Locks | None
) -> AsyncIterator[list[dict[str, object]]]:
    """Read single items."""
    lane, handle = link.state.paths.place_of(partition.folder), link.handle
    places = [ItemRef(lane, name).path for name in names if ItemName.parse(name) is not None]
    pages = item_pages(handle, places) if locks is None else find_pages(handle, places, config=locks.config)
    async for page in pages:
        now = link.runtime.server_clock.now()
        items = page if locks is None else map(locks.own, page)
        yield [item_values(item, now, layout) for item in items]


async def _bundled(
    link: Link, partition: FolderShare, layout: RowLayout, names: Iterable[str], partial: dict[str, set[str]]
) -> AsyncIterator[PageValues]:
    """Read the messages that are left in bundles. If a bundle is incomplete, add its messages to ``partial``."""
    lane = link.state.paths.place_of(partition.folder)
    whole = {ItemRef(lane, name).path: _order(name) for name in names}
    partial.update({order: set() for order in whole.values()})
    async for found in bundle_pages(link.handle, list(whole)):
        rows: list[dict[str, object]] = []
        parts: list[ColumnarPart] = []
        for place, state in found:
            columns = _columnar_part_of(state, layout) if partition.ids is None else None
            if columns is not None:
                parts.append(columns)
                del partial[whole[place]]
                continue
            messages = _messages_of(state)
            rows += bundled_values(state, messages, layout)
            if len(messages) == state.name.size:
                del partial[whole[place]]
            else:
                partial[whole[place]] = {message.id for message, _ in messages}
        if parts:
            yield ColumnarPage(parts)
        if rows:
            yield [values for values in rows if partition.ids is None or values["id"] in partition.ids]


async def _dead_letters(link: Link, partition: FolderShare, _: RowLayout) -> AsyncIterator[PageValues]:
    names = await _share(link, partition)
    for start in range(0, len(names), PAGE):
        page = names[start : start + PAGE]
        nodes = await read_all(link.handle, [link.state.paths.dead(name) for name in page])
        rows: list[dict[str, object]] = []
        for name, node in zip(page, nodes, strict=True):
            item = ItemName.parse(name)
            if item is None or node is None:
                continue
            header, body = _stored(node.data)
            values = _payload_values(item.id, header, body, node.stat.ctime)
            dead = None if header is None else header.dead
            values["reason"] = None if dead is None else dead.reason
            values["attempt"] = None if dead is None else dead.attempts
            values["dead_at"] = None if dead is None else 1000 * dead.at
            rows.append(values)
        yield rows


def _history(link: Link, partition: FolderShare, _: RowLayout) -> AsyncIterator[PageValues]:
    return history_pages(link, partition)


async def history_pages(link: Link, partition: FolderShare) -> AsyncIterator[list[dict[str, object]]]:
    """Read a share of an hour of history."""
    names = await _share(link, partition)
    for start in range(0, len(names), PAGE):
        page = [name for name in names[start : start + PAGE] if parse_record(name) is not None]
        nodes = await read_all(link.handle, [f"{partition.folder}/{name}" for name in page])
        rows: list[dict[str, object]] = []
        for name, node in zip(page, nodes, strict=True):
            if node is not None:
                try:
                    rows.append(_record_values(HistoryRecord.decode(name, node.data)))
                except MalformedError:
                    continue  # a record that does not decode has no row
        yield rows


_PAGES: Final[Mapping[Content, Callable[[Link, FolderShare, RowLayout], AsyncIterator[PageValues]]]] = {
    Content.ITEMS: _items,
    Content.DEAD_LETTERS: _dead_letters,
    Content.HISTORY: _history,
}


def _stored(data: bytes) -> tuple[Header | None, bytes]:
    """Return the header and the payload of stored bytes; None and the bytes themselves if they do not decode."""
    try:
        return decode(data)
    except MalformedError:
        return None, data


def _payload_values(message_id: str, header: Header | None, body: bytes, created: int) -> dict[str, object]:
    """Return the properties of a message that its header and its payload hold."""
    if header is None:
        return {"id": message_id, "body": body, "enqueued_at": 1000 * created}
    return {
        "id": message_id,
        "body": body,
        "enqueued_at": 1000 * header.put_at(created),
        "headers": list(header.headers.items()),
        "key": header.key,
        "group": header.group,
        "priority": header.priority,
        "tags": [(name, str(value)) for name, value in header.tags.items()],
    }


def item_values(snapshot: ItemSnapshot, now: int, layout: RowLayout) -> dict[str, object]:
    """Return the contents of an item and, if requested, of its lock and its attempts."""
    values = _payload_values(snapshot.id, *_stored(snapshot.item.data), snapshot.item.stat.ctime)
    if not layout.reads_locks:
        return values
    item = ItemName.parse(snapshot.name)
    assert item is not None  # noqa: S101 - callers read only items
    due = due_of(item, snapshot.lock_id, snapshot.lock)
    later = due is not None and due > now
    values["attempt"] = attempts_of(snapshot.meta)
    values["state"] = "in flight" if snapshot.in_flight else "delayed" if later else "waiting"
    values["owner"] = _owner_of(snapshot) if snapshot.in_flight else None
    values["due"] = 1000 * due if later and due is not None else None
    return values


def _messages_of(state: BundleState) -> list[tuple[BundledMessage, int]]:
    """Return the messages that are left in a bundle, with their attempts. A damaged bundle is one message."""
    try:
        return state.messages()
    except MalformedError:
        return [(BundledMessage(state.name.id, state.bundle.data), 0)]


def _columnar_part_of(state: BundleState, layout: RowLayout) -> ColumnarPart | None:
    try:
        return columnar_part_of(state, layout, 0, state.name.size)
    except MalformedError:
        return None


def columnar_part_of(state: BundleState, layout: RowLayout, first: int, last: int) -> ColumnarPart | None:
    """Return messages of a bundle, from ``first`` to before ``last``; None if they must be read one by one.

    Raises: MalformedError.
    """
    table = state.table() if layout.is_columnar else None
    if table is None or not are_bare(table):
        return None
    (values,) = bundled_values(state, [(BundledMessage("", b""), 0)], layout)
    return ColumnarPart(table.part(first, last), values)


def bundled_values(
    state: BundleState, messages: Iterable[tuple[BundledMessage, int]], layout: RowLayout
) -> list[dict[str, object]]:
    """Return the contents of messages of a bundle, as `item_values` does."""
    rows: list[dict[str, object]] = []
    for message, attempts in messages:
        values = _payload_values(message.id, *_stored(message.data), state.bundle.ctime)
        if layout.reads_locks:
            values["attempt"] = attempts
            values["state"] = "waiting" if state.lock is None else "in flight"
            values["owner"] = None if state.lock is None else LockRecord.decode(state.lock.data).owner
            values["due"] = None
        rows.append(values)
    return rows


def _owner_of(snapshot: ItemSnapshot) -> str | None:
    """Return the holder of an item."""
    return None if snapshot.lock is None else LockRecord.decode(snapshot.lock.data).owner


def _record_values(record: HistoryRecord) -> dict[str, object]:
    return {
        "id": record.id,
        "outcome": record.outcome.value,
        "put_at": 1000 * record.put,
        "claimed_at": None if record.claimed is None else 1000 * record.claimed,
        "ended_at": 1000 * record.ended,
        "attempt": record.attempts,
        "client": record.client,
        "host": record.host,
        "pid": record.pid,
        "key": record.key,
        "group": record.group,
        "reason": record.reason,
        "headers": list(record.headers.items()),
        "body": record.payload,
    }
