"""Finds expired messages that no consumer takes, by their names, and ends them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.layout import item_field
from aiozkqueue.queue.commit.conditional import apply
from aiozkqueue.queue.commit.unclaimed import as_configured, dead_lettering, find_pages, removal
from aiozkqueue.queue.put.ttl import at_its_end

from .listing import first_items
from .stats import lanes

if TYPE_CHECKING:
    from aiozkqueue.queue.commit.conditional import Change
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.commit.unclaimed import ItemSnapshot


async def sweep_expired(handle: QueueHandle[Runtime], *, limit: int = 10_000) -> int:
    """End up to ``limit`` expired messages of a queue that no consumer holds; return how many.

    Each is removed, or dead-lettered, by a multi that fails if a consumer takes it in the meantime, so several
    processes may do this at once.

    Raises: AccessDeniedError, OutcomeUnknownError, PayloadError, SessionClosedError.
    """
    if not await handle.state.open_existing():
        return 0
    now = await handle.runtime.server_clock.learned(handle.paths.due)
    ended: dict[str, int] = {}
    for entry in await first_items(handle, await lanes(handle), limit, partial(_may_have_ended, now=now)):
        if entry.item.expires is not None and entry.item.expires <= now:
            ended[handle.paths.place_of(entry.path)] = entry.item.expires
    swept = 0
    async for page in find_pages(handle, list(ended), unreadable={}):  # `doctor` reports unreadable messages
        changes = [_sweeping(handle, snapshot, ended[snapshot.place]) for snapshot in page if not snapshot.held(now)]
        swept += sum(await apply(handle.runtime, changes))
    return swept


def _may_have_ended(text: str, *, now: int) -> bool:
    """Whether a name has a time of expiry that has passed, if it is an item's."""
    end = item_field(text, "e")
    return end.isascii() and end.isdigit() and int(end) <= now


def _sweeping(handle: QueueHandle[Runtime], found: ItemSnapshot, end: int) -> Change:
    disposition = at_its_end(handle.config, end)
    made = (dead_lettering if disposition.kind == "dead" else removal)(handle.runtime, handle.state, found, disposition)
    return as_configured(found, made)
