"""Listings of a queue for operators, of any length, without blocking the event loop.

A listing of a million items takes seconds to read, and the process that asks for it may hold claims. So names are
filtered as they arrive, only the wanted ones are kept, and an item is parsed when its page is due.
"""

from __future__ import annotations

import asyncio
from functools import partial
from heapq import merge
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from aiozkqueue.errors import AccessDeniedError
from aiozkqueue.layout import (
    ItemName,
    ItemRef,
    generation_of,
    has_field,
    hour_named,
    match_due,
    parse_lock,
    priority_at,
    priority_of,
)
from aiozkqueue.queue.candidates.batches import is_batch_lock, is_closed, visible
from aiozkqueue.queue.candidates.collectors import Earliest, Matching, Parsed, sequence_of
from aiozkqueue.runtime.acl_errors import translate_denials
from aiozkqueue.runtime.strings import Names
from aiozkqueue.zookeeper import Collector, NoNodeError, below

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.runtime.strings import Strings

C = TypeVar("C", bound=Collector)
T = TypeVar("T")

#: Items parsed before other tasks run: a few milliseconds of work.
SLICE: Final = 512


class Placed(NamedTuple):
    """An item and its path."""

    item: ItemName
    path: str
    generation: int
    """The generation of its lane: each generation has its own sequence."""


async def list_children(handle: QueueHandle[Runtime], path: str) -> list[str]:
    """List the children of a znode of a queue; none if the queue does not exist. Raises: AccessDeniedError."""
    with translate_denials(handle.name):
        return await below(handle.zookeeper, path)


async def collect_children(handle: QueueHandle[Runtime], path: str, collector: Callable[[], C]) -> C:
    """Pass the children of a znode of a queue to a collector as they arrive; none if the queue does not exist.

    Raises: AccessDeniedError.
    """
    try:
        with translate_denials(handle.name):
            return await handle.zookeeper.children_into(path, collector)
    except NoNodeError:
        return collector()


async def first_items(
    handle: QueueHandle[Runtime],
    folders: Sequence[str],
    limit: int,
    passes: Callable[[str], object] | None = None,
) -> list[Placed]:
    """Return the first ``limit`` items in these folders whose names pass, in the order of `walk`.

    However many are there, about ``limit`` names are held at a time. Raises: AccessDeniedError.
    """
    closed: set[str] = set()

    def wanted(name: str) -> bool:
        if passes is not None and not passes(name):
            return False
        return not is_closed(name, closed) and handle.state.parse_item(name) is not None

    while True:
        found: list[Placed] = []
        for group in by_rank(handle.state, folders):
            names = await _read(handle, group, limit - len(found), wanted)
            async for page in _pages(handle.state, names):
                found += page
            if len(found) >= limit:
                break
        if not any(entry.item.batch is not None for entry in found):
            return found
        now_closed = await closed_stages(handle)
        seen_by_all = [entry for entry in found if not is_closed(entry.item.text, now_closed)]
        if len(seen_by_all) == len(found) or len(found) < limit:
            return seen_by_all
        closed |= now_closed  # hidden items have taken the place of later ones


async def first_readable(
    handle: QueueHandle[Runtime],
    folders: Sequence[str],
    limit: int,
    read: Callable[[Sequence[Placed]], Awaitable[Sequence[T | AccessDeniedError | None]]],
) -> tuple[list[T], list[str]]:
    """Return the results of ``read`` for the first ``limit`` readable items, and the ids of the unreadable ones before.

    Raises: AccessDeniedError: the folders may not be listed.
    """
    contents: list[T] = []
    seen: set[str] = set()
    unreadable: list[str] = []
    wanted = limit
    while True:
        placed = await first_items(handle, folders, wanted)
        fresh = [entry for entry in placed if entry.path not in seen]
        seen.update(entry.path for entry in fresh)
        before = len(unreadable)
        for entry, found in zip(fresh, await read(fresh), strict=True):
            if isinstance(found, AccessDeniedError):
                unreadable.append(entry.item.id)
            elif found is not None and len(contents) < limit:
                contents.append(found)
        if len(unreadable) == before or len(placed) < wanted:
            return contents, unreadable
        wanted = limit + len(unreadable)


async def walk(
    handle: QueueHandle[Runtime],
    folders: Sequence[str],
    passes: Callable[[str], object] | None = None,
    *,
    ordered: bool = True,
) -> AsyncIterator[list[Placed]]:
    """Yield the items in these folders whose names pass, some hundred at a time.

    The order is by priority, then by age, with scheduled items last, by time; or unspecified. Items of incomplete
    batches are left out. Only names that have passed are held in memory.

    Raises: AccessDeniedError.
    """
    for group in by_rank(handle.state, folders):
        names = await _read(handle, group, None, passes, ordered=ordered)
        closed: set[str] | None = None
        async for page in _pages(handle.state, names):
            if any(entry.item.batch is not None for entry in page):
                closed = await closed_stages(handle) if closed is None else closed
                yield [entry for entry in page if not is_closed(entry.item.text, closed)]
            else:
                yield page


async def list_items(
    handle: QueueHandle[Runtime], folders: Sequence[str], passes: Callable[[str], object] | None = None
) -> list[Placed]:
    """Return all items in these folders whose names pass, in the order of `walk`; each is held in memory.

    Raises: AccessDeniedError.
    """
    return [entry async for page in walk(handle, folders, passes) for entry in page]


async def closed_stages(handle: QueueHandle[Runtime]) -> set[str]:
    """Return the locks of incomplete batches: an item seen before the call, and in none of them, is visible."""
    locks = await collect_children(handle, handle.paths.locks, lambda: Matching(_stage))
    return {lock for name in locks.names if (lock := _stage(name)) is not None}


async def locked_ids(handle: QueueHandle[Runtime]) -> Strings:
    """Return the ids of the messages and groups that are locked. Raises: AccessDeniedError."""
    return (await collect_children(handle, handle.paths.locks, partial(Parsed, handle.paths.lock_of))).values


async def seen(handle: QueueHandle[Runtime], names: Sequence[str]) -> Sequence[str]:
    """Leave items of incomplete batches out of a listing. The event loop runs other tasks in between."""
    closed: set[str] | None = None
    kept, parts = Names(), iter(names)
    while part := list(islice(parts, SLICE)):
        if closed is None and any(has_field(name, "b") for name in part):
            closed = await closed_stages(handle)
        kept.extend(part if closed is None else visible(part, closed))
        await asyncio.sleep(0)
    return kept


def _stage(name: str) -> str | None:
    lock = parse_lock(name)
    return lock if is_batch_lock(lock) else None


def by_rank(state: QueueState, folders: Sequence[str]) -> list[list[str]]:
    """Group folders whose items are in one order, the first group first."""
    if _foreign(state, folders):
        return [list(folders)]
    later = f"{state.paths.later}/"

    def rank(folder: str) -> tuple[int, int, int]:
        hour = hour_named(folder.removeprefix(later))
        return (0, priority_of(folder), generation_of(folder)) if hour is None else (1, hour, 0)

    return [list(group) for _, group in groupby(sorted(folders, key=rank), rank)]


def _foreign(state: QueueState, folders: Iterable[str]) -> bool:
    return state.dialect is not None and state.paths.dlq not in folders


def _key(state: QueueState, folders: Sequence[str]) -> Callable[[str], Any]:
    """Return the sort key of names in folders of one rank."""
    if state.dialect is not None and _foreign(state, folders):
        return state.dialect.order
    return _scheduled if folders[0].startswith(f"{state.paths.later}/") else _by_age


def _by_age(name: str) -> str:
    """Return the sort key of items: the sequence number, then the id, for the messages of a dissolved bundle."""
    return f"{sequence_of(name)}{name}"


def _scheduled(name: str) -> tuple[int, int, str]:
    """Return the sort key of scheduled items: due time, then priority.

    `ItemName.parse` would take five times as long.
    """
    match = match_due(name)
    if match is None:
        item = ItemName.parse(name)
        return (0 if item is None or item.due is None else item.due), 0, sequence_of(name)
    return int(match[1]), priority_at(f"later/0/{name}") if match[2] else 0, sequence_of(name)


async def _read(
    handle: QueueHandle[Runtime],
    folders: Sequence[str],
    limit: int | None,
    passes: Callable[[str], object] | None,
    *,
    ordered: bool = True,
) -> Iterator[tuple[Any, str, str]]:
    """List folders of one rank; yield each name with its sort key and its folder."""
    if handle.state.dialect is not None and _foreign(handle.state, folders):
        passes = _both(handle.state.dialect.is_item, passes)
    if not ordered:
        every = [
            (folder, await collect_children(handle, folder, lambda: Matching(passes or bool))) for folder in folders
        ]
        return ((None, name, folder) for folder, listed in every for name in listed.names)
    key = _key(handle.state, folders)
    streams: list[Iterator[tuple[Any, str, str]]] = []
    for folder in folders:
        names = await collect_children(handle, folder, lambda: Earliest(limit, passes, key))
        streams.append(_with_keys(names.in_order(), key, folder))
    return islice(merge(*streams), limit)


def _with_keys(names: Iterator[str], key: Callable[[str], Any], folder: str) -> Iterator[tuple[Any, str, str]]:
    return ((key(name), name, folder) for name in names)


def _both(first: Callable[[str], object], second: Callable[[str], object] | None) -> Callable[[str], object]:
    return first if second is None else lambda name: first(name) and second(name)


async def _pages(state: QueueState, names: Iterator[tuple[Any, str, str]]) -> AsyncIterator[list[Placed]]:
    """Parse a page at a time; other tasks run between two pages."""
    while page := list(islice(names, SLICE)):
        yield [
            Placed(item, ItemRef(folder, name).path, generation_of(folder))
            for _, name, folder in page
            if (item := state.parse_item(name)) is not None
        ]
        await asyncio.sleep(0)
