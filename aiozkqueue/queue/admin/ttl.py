"""Finds expired messages that no consumer takes, by their names, and ends them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.layout import ItemName
from aiozkqueue.queue.admin.listing import collect_children, seen
from aiozkqueue.queue.admin.stats import lanes
from aiozkqueue.queue.candidates.collectors import Earliest
from aiozkqueue.queue.commit.conditional import apply
from aiozkqueue.queue.commit.unclaimed import burial, find_pages, removal
from aiozkqueue.queue.put.ttl import at_its_end

if TYPE_CHECKING:
    from aiozkqueue.queue.commit.conditional import Change
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.commit.unclaimed import ItemSnapshot


async def sweep_expired(handle: QueueHandle[Runtime], *, limit: int = 10_000) -> int:
    """End up to ``limit`` expired messages of a queue that no consumer holds; return how many.

    Each is removed, or dead-lettered, by a multi that fails if a consumer takes it meanwhile, so several processes may
    do this at once.

    Raises: AccessDeniedError, OutcomeUnknownError, PayloadError, SessionClosedError.
    """
    await handle.state.open()
    now = await handle.runtime.server_clock.learned(handle.paths.due)
    ended: dict[str, int] = {}
    for lane in await lanes(handle):
        if len(ended) >= limit:
            break
        passes = partial(_has_ended, now=now)
        listed = await collect_children(handle, lane, partial(Earliest, limit - len(ended), passes))
        for text in await seen(handle, listed.names()):
            name = ItemName.parse(text)
            if name is not None and name.expires is not None:
                ended[f"{lane.removeprefix(f'{handle.paths.base}/')}/{text}"] = name.expires
    swept = 0
    async for page in find_pages(handle, list(ended), sealed={}):  # `doctor` reports unreadable messages
        changes = [_sweeping(handle, one, ended[one.place]) for one in page if not one.held(now)]
        swept += sum(await apply(handle.runtime, changes))
    return swept


def _has_ended(text: str, *, now: int) -> bool:
    name = ItemName.parse(text) if "-e" in text else None
    return name is not None and name.expires is not None and name.expires <= now


def _sweeping(handle: QueueHandle[Runtime], found: ItemSnapshot, end: int) -> Change:
    disposition = at_its_end(handle.config, end)
    return (burial if disposition.kind == "dead" else removal)(handle.runtime, handle.state, found, disposition)
