"""Emptying a queue of the messages that nobody holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.errors import AccessDeniedError
from aiozkqueue.queue.commit.conditional import settle_allowed
from aiozkqueue.queue.commit.dispositions import REMOVED
from aiozkqueue.queue.commit.unclaimed import find_pages, removal
from aiozkqueue.queue.runtime.acl_errors import partly_denied

from .listing import walk
from .stats import lanes

if TYPE_CHECKING:
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.commit.unclaimed import Sealed


async def purge(handle: QueueHandle[Runtime]) -> int:
    """Remove every item that no transaction or delivery holds; return how many.

    Raises: PartlyDeniedError: some may not be read or removed by this user; all others are gone.
    """
    removed = 0
    while True:
        refused: dict[str, None] = {}
        again = opened = False
        async for listed in walk(handle, await lanes(handle)):
            if listed and not opened:
                await handle.state.open()  # what its features add to each end
                opened = True
            sealed: Sealed = {}
            async for page in find_pages(handle, [handle.paths.place_of(one.path) for one in listed], sealed):
                free = [one for one in page if not one.in_flight]
                writes = await settle_allowed(
                    handle.runtime, [removal(handle.runtime, handle.state, one, REMOVED) for one in free]
                )
                made = [not write.left and write.error is None for write in writes]
                refused |= {
                    one.id: None
                    for one, write in zip(free, writes, strict=True)
                    if isinstance(write.error, AccessDeniedError)
                }
                removed += sum(made)
                again = again or (any(made) and any(write.left for write in writes))
            refused |= {handle.state.item_id(place.rpartition("/")[2]): None for place in sealed}
        if not (again and handle.config.grouped):  # behind one that waited, others of its group may have been left
            break
    if refused:
        raise partly_denied(handle.name, "removed", list(refused), removed)
    return removed
