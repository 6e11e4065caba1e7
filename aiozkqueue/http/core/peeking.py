"""Lists messages for peeks and polls that claim nothing, with bounded work for a queue of any size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import lane_at
from aiozkqueue.layout.compaction import compaction_key, restored_in
from aiozkqueue.operations.bundles import dissolve_first
from aiozkqueue.operations.ended_locks import ended_locks
from aiozkqueue.operations.listing import first_items, locked_ids
from aiozkqueue.operations.shown_time import shown_time
from aiozkqueue.operations.stats import configuration, lanes
from aiozkqueue.queue.candidates.groups import is_group, lock_id
from aiozkqueue.queue.commit.unclaimed import find_pages
from aiozkqueue.queue.put.affinity import chooser

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiozkqueue.layout import StoredConfig
    from aiozkqueue.operations.listing import Placed
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.unclaimed import ItemSnapshot
    from aiozkqueue.session.core import SessionCore

#: The number of messages that are searched for equal ones, or for the first of each group; later ones are left out.
COMPARED: Final = 4_000


async def everything(handle: QueueHandle[SessionCore], limit: int) -> list[ItemSnapshot]:
    """Return the first messages, including held ones. Raises: AccessDeniedError, PayloadError."""
    await _dissolve_oldest(handle, 2 * limit)
    placed = await first_items(handle, await lanes(handle), 2 * limit)
    return await _read(handle, placed, limit, None, lambda _: True)


async def claimable(handle: QueueHandle[SessionCore], limit: int, *, collapse: bool) -> list[ItemSnapshot]:
    """Return the first messages that are due and not held; of equal ones the newest, and of a group the oldest.

    Raises: AccessDeniedError, PayloadError.
    """
    config = await configuration(handle)
    if config is None or config.paused:
        return []
    await _dissolve_oldest(handle, 2 * limit)
    locked = await locked_ids(handle)
    async for ended in ended_locks(handle):
        locked.discard(ended)
    now = await shown_time(handle.runtime)
    is_ours = chooser(config, handle.runtime.node) or bool

    def passes(name: str) -> bool:
        item = handle.state.parse_item(name)
        return (
            item is not None
            and is_ours(name)
            and (item.due is None or item.due <= now)
            and (item.expires is None or item.expires > now)
            and lock_id(config, name) not in locked
        )

    collapse = collapse or bool(config.collapse)
    examined = COMPARED if collapse or config.grouped else 2 * limit
    placed = await first_items(handle, await lanes(handle), examined, passes)
    if collapse:
        placed = _newest(placed)
    placed = _heads(placed, config)[: 2 * limit]
    return await _read(handle, placed, limit, config, lambda item: item.lock is None or (item.end or now + 1) <= now)


async def _dissolve_oldest(handle: QueueHandle[SessionCore], messages: int) -> None:
    """Dissolve the oldest bundles: the HTTP interface shows, claims and acknowledges single items."""
    config = await configuration(handle)
    if config is not None and config.bundled:
        await dissolve_first(handle, await lanes(handle), messages)


def _newest(placed: Sequence[Placed]) -> list[Placed]:
    """Omit messages that are replaced by a newer one with the same key."""
    keyed = [(lane_at(entry.path), compaction_key(entry.item)) for entry in placed]
    # Which of a restored message and another one was put last is known only from their contents.
    restored = restored_in([entry.item.text for entry in placed])
    by_put = sorted(zip(keyed, placed, strict=True), key=lambda each: each[1].item.text not in restored)
    newest = dict(by_put)
    return [entry for entry, like in zip(placed, keyed, strict=True) if like[1] is None or newest[like] is entry]


def _heads(placed: Sequence[Placed], config: StoredConfig) -> list[Placed]:
    """Omit messages that are delivered after another one of their group."""
    heads: dict[str, Placed] = {}
    for entry in placed:
        lock = lock_id(config, entry.item.text)
        heads.setdefault(lock if is_group(lock) else entry.path, entry)
    return list(heads.values())


async def _read(
    handle: QueueHandle[SessionCore],
    placed: Sequence[Placed],
    limit: int,
    config: StoredConfig | None,
    shows: Callable[[ItemSnapshot], bool],
) -> list[ItemSnapshot]:
    """Read up to ``limit`` of these messages; skip those that no longer exist."""
    shown: list[ItemSnapshot] = []
    async for page in find_pages(handle, [handle.paths.place_of(entry.path) for entry in placed], config=config):
        shown += filter(shows, page)
        if len(shown) >= limit:
            break
    return shown[:limit]
