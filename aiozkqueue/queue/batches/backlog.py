"""The messages of a queue that a ledger can take: those that no consumer holds, in order."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.layout import ItemRef
from aiozkqueue.queue.admin.bundles import dissolve_first
from aiozkqueue.queue.admin.listing import collect_children, seen
from aiozkqueue.queue.admin.stats import lanes, put_into, stat_lanes
from aiozkqueue.queue.candidates.batches import is_closed
from aiozkqueue.queue.candidates.collectors import Earliest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.session_core import SessionCore
    from aiozkqueue.queue.state.queue_state import QueueState


class Frozen(NamedTuple):
    """The items at a moment of ZooKeeper's time, in ms: for each lane, those before a sequence."""

    moment: int
    ends: Mapping[str, int]


async def freeze(handle: QueueHandle[SessionCore]) -> Frozen:
    """Return the current items."""
    now = await handle.runtime.server_clock.learned(handle.paths.due)
    stats = await stat_lanes(handle)
    return Frozen(now, {lane: put_into(stat) for lane, stat in stats.items()})


async def list_free(
    handle: QueueHandle[SessionCore],
    locked: Collection[str | None],
    frozen: Frozen | None,
    *,
    limit: int,
    wanted: Callable[[list[str]], list[str]],
) -> list[str]:
    """List up to ``limit`` places that are not ``locked``, the most urgent and oldest first, a lane at a time.

    Items of a batch that was incomplete when the locks were listed are left to a later list. A batch begun since then
    is found among the last items, because it was put last.
    """
    free: list[str] = []
    if not limit:
        return free
    now = await handle.runtime.server_clock.learned(handle.paths.due)
    moment = now if frozen is None else frozen.moment
    folders = await lanes(handle)
    if handle.config.bundled:  # a ledger notes single items
        await dissolve_first(handle, folders, limit)
    for lane in folders:
        end = None if frozen is None else frozen.ends.get(lane, 0)
        passes = partial(_is_free, state=handle.state, locked=locked, moment=moment, now=now, end=end)
        first = await collect_children(handle, lane, partial(Earliest, limit - len(free), passes))
        place = handle.paths.place_of(lane)
        names = await seen(handle, first.names())
        for index, name in enumerate(names):  # in place, as there may be many
            names[index] = ItemRef(place, name).path
        free += wanted(names)
        if len(free) >= limit:
            break
    return free


def _is_free(
    name: str, *, state: QueueState, locked: Collection[str | None], moment: int, now: int, end: int | None
) -> bool:
    item = state.parse_item(name)
    return (
        item is not None
        and (end is None or item.sequence < end)
        and item.id not in locked
        and (item.due is None or item.due <= moment)
        and (item.expires is None or item.expires > now)
        and not is_closed(name, locked)
    )
