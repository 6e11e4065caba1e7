"""Removes the messages of a queue that are not in flight, leased ones included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.errors import AccessDeniedError
from aiozkqueue.layout import name_at
from aiozkqueue.queue.commit.conditional import settle_allowed
from aiozkqueue.queue.commit.dispositions import REMOVED
from aiozkqueue.queue.commit.unclaimed import as_configured, find_pages, removal
from aiozkqueue.runtime.acl_errors import partly_denied

from .bundles import dissolve_all, remove_bundles
from .listing import walk
from .stats import configuration, lanes, lanes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.commit.unclaimed import ItemSnapshot, Unreadable


class _Pass:
    """One pass over the queue's items."""

    def __init__(self, handle: QueueHandle[Runtime]) -> None:
        self._handle = handle
        self.removed = 0
        self.refused: dict[str, AccessDeniedError] = {}
        """The messages that this user may not read or remove, by their ids."""
        self.incomplete = False
        """Whether messages were removed together with others that were left because someone had claimed them."""
        self.outdated = False
        """Whether messages were left because the configuration had changed."""

    async def run(self) -> None:
        """Remove every item that is not in flight."""
        handle, opened = self._handle, False
        async for listed in walk(handle, await lanes(handle)):
            if listed and not (opened and handle.state.ready):  # features add operations to each end
                if not await handle.state.open_existing():
                    return
                opened = True
            unreadable: Unreadable = {}
            places = [handle.paths.place_of(placed.path) for placed in listed]
            async for page in find_pages(handle, places, unreadable):
                await self._remove([snapshot for snapshot in page if not snapshot.in_flight])
            self.refused |= {handle.state.item_id(name_at(place)): error for place, error in unreadable.items()}

    async def _remove(self, snapshots: Sequence[ItemSnapshot]) -> None:
        runtime, state = self._handle.runtime, self._handle.state
        changes = [as_configured(snapshot, removal(runtime, state, snapshot, REMOVED)) for snapshot in snapshots]
        parts = await settle_allowed(runtime, changes)
        for snapshot, part in zip(snapshots, parts, strict=True):
            if isinstance(part.error, AccessDeniedError):
                self.refused[snapshot.id] = part.error
        removed = sum(part.error is None for part in parts)
        self.removed += removed
        left = any(part.left for part in parts)
        self.incomplete |= removed > 0 and left
        self.outdated |= left and not state.ready


async def purge(handle: QueueHandle[Runtime]) -> int:
    """Remove every item that is not in flight; return how many.

    Raises: PartlyDeniedError: this user may not read or remove some items; all others are gone.
    """
    await handle.zookeeper.sync(handle.paths.base)  # a lagging server may not know an acknowledged message
    removed, refused = await _purge_bundles(handle)
    while True:
        this_pass = _Pass(handle)
        await this_pass.run()
        removed += this_pass.removed
        # In a group, one message that was left may have held back those behind it.
        if not (this_pass.outdated or (this_pass.incomplete and handle.config.grouped)):
            break
    refused |= this_pass.refused
    if refused:
        raise partly_denied(handle.name, "removed", list(refused), removed, next(iter(refused.values())))
    return removed


async def _purge_bundles(handle: QueueHandle[Runtime]) -> tuple[int, dict[str, AccessDeniedError]]:
    """Remove the bundles, or make their messages single items if each end is recorded, or if callers wait.

    Return the number of the messages removed, and the bundles that an ACL or a quota protects, by their ids.
    """
    removed, refused = 0, dict[str, AccessDeniedError]()
    while (config := await configuration(handle)) is not None and config.bundled:
        if not await handle.state.open_existing():
            break
        folders, known = await lanes_of(handle, config), handle.state.snapshot
        if known.end_hooks:
            await dissolve_all(handle, folders)
            break
        number, refused = await remove_bundles(handle, folders, known.check)
        removed += number
        if handle.state.ready:  # otherwise the configuration has changed
            break
    return removed, refused
