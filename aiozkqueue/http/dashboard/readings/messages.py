"""The messages of a queue, by pages, and the messages that a search finds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from aiozkqueue.layout import LockRecord, StoredConfig
from aiozkqueue.operations.bundles import first_bundled
from aiozkqueue.operations.held import held_of_groups
from aiozkqueue.operations.listing import first_items
from aiozkqueue.operations.peek import bundled_content
from aiozkqueue.operations.shown_time import shown_time
from aiozkqueue.operations.stats import configuration, content, due_of, lanes_of
from aiozkqueue.queue.candidates.groups import is_group
from aiozkqueue.queue.commit.unclaimed import find_pages, record_of_attempts
from aiozkqueue.session.internals import handle_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from aiozkqueue.http.core.shared_readings import SharedReadings
    from aiozkqueue.layout import ItemName
    from aiozkqueue.operations.bundles import Found
    from aiozkqueue.operations.listing import Placed
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.unclaimed import ItemSnapshot, Unreadable
    from aiozkqueue.queue.message import Content
    from aiozkqueue.session.core import SessionCore
    from aiozkqueue.session.queue import Queue

#: The number of messages, the first in the order of delivery, that can be listed by pages and searched.
EXAMINED: Final = 5_000
#: The total size of messages after which a search stops, bytes.
EXAMINED_BYTES: Final = 64 * 1024 * 1024
#: Messages on a page.
SHOWN: Final = 50

Status = Literal["waiting", "in flight", "retrying", "scheduled"]
STATUSES: Final[tuple[Status, ...]] = ("waiting", "in flight", "retrying", "scheduled")


class Wanted(NamedTuple):
    """Selects messages. An empty text selects all."""

    id: str = ""
    """A part of the id. All messages of the queue are examined."""
    text: str = ""
    """A part of the key, of the group, or of a tag as ``name=value``."""
    status: str = ""


class Row(NamedTuple):
    """A message without its payload."""

    id: str
    status: Status
    priority: int
    key: str | None
    group: str | None
    tags: Mapping[str, str | int]
    put: float
    """Seconds since 1970."""
    attempts: int
    due: float | None
    error: str | None
    size: int


class Listing(NamedTuple):
    """Messages that were found."""

    rows: list[Row]
    """Those of one page."""
    found: int | None
    """How many match; None: all messages of the queue do."""
    more: bool
    """Whether some messages were not examined."""


class _Index(NamedTuple):
    config: StoredConfig
    placed: list[Placed]
    bundled: list[Found]
    heads: frozenset[str]
    """The messages that the locks of groups hold."""


async def list_messages(shared: SharedReadings, queue: Queue[bytes], wanted: Wanted, page: int) -> Listing:
    """Return a page of the messages that match, from 0. Visitors share the data that is read for it.

    Raises: AccessDeniedError, PayloadError.
    """
    handle = handle_of(queue)
    index = await shared.get(("index", queue.name, wanted.id), lambda: _read_index(handle, wanted.id))
    start = page * SHOWN
    if not (wanted.text or wanted.status):
        rows = await _rows(handle, index, slice(start, start + SHOWN))
        total = len(index.placed) + len(index.bundled)
        return Listing(rows, min(total, EXAMINED) if wanted.id else None, total > EXAMINED)
    matching, more = await shared.get(("search", queue.name, wanted), lambda: _search(handle, index, wanted))
    return Listing(matching[start : start + SHOWN], len(matching), more)


async def _read_index(handle: QueueHandle[SessionCore], message_id: str) -> _Index:
    """List the first messages of a queue, without reading those that are not in bundles."""
    config = await configuration(handle) or StoredConfig()
    folders = await lanes_of(handle, config)

    def passes(name: str) -> bool:
        return message_id in name

    placed = await first_items(handle, folders, EXAMINED + 1, passes if message_id else None)
    bundled = await first_bundled(handle, folders, EXAMINED + 1) if config.bundled else []
    heads = await held_of_groups(handle, config)
    return _Index(config, placed, [found for found in bundled if message_id in found.message.id], heads)


async def _rows(handle: QueueHandle[SessionCore], index: _Index, part: slice) -> list[Row]:
    bundled = [_bundled_row(handle, found) for found in index.bundled[part]]
    left = slice(max(0, part.start - len(index.bundled)), max(0, part.stop - len(index.bundled)))
    return bundled + [row async for row in _single_rows(handle, index, index.placed[left])]


async def _search(handle: QueueHandle[SessionCore], index: _Index, wanted: Wanted) -> tuple[list[Row], bool]:
    matching = [row for row in (_bundled_row(handle, found) for found in index.bundled) if _matches(row, wanted)]
    size, more = 0, len(index.placed) > EXAMINED
    async for row in _single_rows(handle, index, index.placed[:EXAMINED]):
        size += row.size
        if _matches(row, wanted):
            matching.append(row)
        if size > EXAMINED_BYTES:
            return matching, True
    return matching, more


def _matches(row: Row, wanted: Wanted) -> bool:
    texts = (row.key or "", row.group or "", *(f"{name}={value}" for name, value in row.tags.items()))
    text = wanted.text.casefold()
    return wanted.status in ("", row.status) and any(text in value.casefold() for value in texts)


async def _single_rows(handle: QueueHandle[SessionCore], index: _Index, placed: Sequence[Placed]) -> AsyncIterator[Row]:
    items = {handle.paths.place_of(entry.path): entry.item for entry in placed}
    unreadable: Unreadable = {}
    async for page in find_pages(handle, list(items), unreadable, index.config):
        now = await shown_time(handle.runtime)
        for snapshot in page:
            yield _row(handle, items[snapshot.place], snapshot, index.heads, now)
        await asyncio.sleep(0)


def _row(handle: QueueHandle[SessionCore], item: ItemName, found: ItemSnapshot, heads: frozenset[str], now: int) -> Row:
    lock = found.lock
    record = record_of_attempts(found.meta)
    read = content(handle.state, item, found.item, 0 if record is None else record.attempts)
    if lock is not None and is_group(found.lock_id) and found.id not in heads:
        lock = None  # another message of its group is held
    due = due_of(item, found.lock_id, lock)
    if due is not None and due <= now:
        due = None
    status: Status = "waiting"
    if lock is not None and LockRecord.decode(lock.data).end is None:
        status, due = "in flight", None
    elif due is not None:
        status = "scheduled" if lock is None else "retrying"
    return _row_of(read, status, due, None if record is None else record.error)


def _bundled_row(handle: QueueHandle[SessionCore], found: Found) -> Row:
    read = bundled_content(handle, found)
    return _row_of(read, "waiting" if found.state.lock is None else "in flight", None, None)


def _row_of(read: Content, status: Status, due: int | None, error: str | None) -> Row:
    header = read.header
    put = header.put_at(read.created)
    return Row(
        read.id,
        status,
        header.priority,
        header.key,
        header.group,
        header.tags,
        put / 1000,
        read.attempt,
        None if due is None else due / 1000,
        error,
        len(read.body),
    )
