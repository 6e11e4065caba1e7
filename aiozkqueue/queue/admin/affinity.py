"""Hand on to all nodes the messages of a sticky queue (`QueueConfig.affinity`) that their node leaves waiting too long.

A session never hands on messages of its own node: another session of that node may be working through them, and nothing
tells a session of the producer whether one does. Sessions of other nodes do it.

One multi removes the item and creates it without the node's field, under the same id, so that its attempts, its keys
and its place in the order stay its own; a history gets a record that it was reaped. The second client is refused,
since the item is gone, and so is whoever finds it claimed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import (
    End,
    ItemName,
    LockRecord,
    MalformedError,
    decode,
    encode,
    parse_lock,
)
from aiozkqueue.moments import milliseconds_in
from aiozkqueue.queue.admin.listing import by_rank, list_children, walk
from aiozkqueue.queue.admin.stats import lanes
from aiozkqueue.queue.commit.conditional import Change, apply
from aiozkqueue.queue.commit.dispositions import Disposition
from aiozkqueue.queue.commit.history import HistoryHook
from aiozkqueue.queue.commit.register import server_time
from aiozkqueue.queue.commit.unclaimed import as_claim, find
from aiozkqueue.queue.put.affinity import node_of, without_node
from aiozkqueue.zookeeper import Create, Delete, SetData

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.commit.unclaimed import ItemSnapshot
    from aiozkqueue.zookeeper import Operation

#: Seconds after its date at which a message that its node has not taken is handed on, if nothing else is configured.
REAP_AFTER: Final = 600.0
#: Seconds between two looks for such, if nothing else is configured.
REAP_EVERY: Final = 180.0
#: Messages handed on by one pass, the oldest, if nothing else is configured.
REAP_LIMIT: Final = 10
_PAGE: Final = 50


async def hand_on(handle: QueueHandle[Runtime], limit: int | None = None) -> int:
    """Hand on the oldest messages that other nodes have left waiting for too long; return how many.

    One pass takes at most ``limit`` messages (None: as configured). Messages that somebody holds, that wait for a
    retry, or that this session's own node has put stay where they are.
    """
    handle.state.invalidate()  # nothing tells a session that does not take of what another has configured
    await handle.state.open()
    config = handle.config
    if config.affinity != "producer":
        return 0
    after = REAP_AFTER if config.reap_after is None else config.reap_after
    latest = await server_time(handle.runtime) - milliseconds_in(float(after))  # type: ignore[arg-type]  # seconds, once checked
    most = limit or config.reap_limit or REAP_LIMIT
    locked = {parse_lock(name) for name in await list_children(handle, handle.paths.locks)}
    late: list[ItemSnapshot] = []
    for folders in by_rank(handle.state, await lanes(handle)):
        of_rank = 0
        async for places in _left_lying(handle, folders, locked, latest):
            found = await find(handle, places, sealed={})  # what may not be read is `doctor`'s to tell
            older = [one for one in found if one.lock is None and _date(one) <= latest]
            late += older
            of_rank += len(older)
            if not older or of_rank >= most:
                break  # what follows in these folders was put later
    late = sorted(late, key=_date)[:most]
    changes = [await _handing_on(handle, one) for one in late]
    reaped = sum(await apply(handle.runtime, changes))
    if handle.runtime.meter is not None:
        handle.runtime.meter.of(handle.name).reaped += reaped
    return reaped


async def _left_lying(
    handle: QueueHandle[Runtime], folders: list[str], locked: Collection[str | None], latest: int
) -> AsyncIterator[list[str]]:
    """Give the places of other nodes' messages that nobody holds, the oldest first, a few at a time."""

    def of_another(name: str) -> bool:
        return node_of(name) not in (None, handle.runtime.node)

    async for listed in walk(handle, folders, of_another):
        places = [
            one.path[len(handle.paths.base) + 1 :]
            for one in listed
            if one.item.id not in locked and (one.item.due is None or one.item.due <= latest)
        ]
        for start in range(0, len(places), _PAGE):
            yield places[start : start + _PAGE]


async def _handing_on(handle: QueueHandle[Runtime], found: ItemSnapshot) -> Change:
    """The change that gives an item to all nodes, refused when anybody holds it or it is gone."""
    paths = handle.paths
    lock = LockRecord(handle.runtime.ids.next(), handle.runtime.ids.client).encode()
    try:
        header, body = decode(found.item.data)
    except MalformedError:
        data = found.item.data  # whoever takes it finds that out
    else:
        enqueued = found.item.stat.ctime if header.enqueued_at is None else header.enqueued_at
        data = encode(body, replace(header, enqueued_at=enqueued))
    folder = found.place.rpartition("/")[0]
    target = paths.at(f"{folder}/{without_node(found.name)}")
    operations: list[Operation] = [
        Create(paths.lock(found.locked_by), lock),
        Delete(paths.at(found.place), found.item.stat.version),
        Create(target, data),
        SetData(target, data, 0),  # an item at version 0 is taken for one without a record of attempts
        Delete(paths.lock(found.locked_by)),
    ]
    for end_hook in handle.state.snapshot.end_hooks:
        if isinstance(end_hook, HistoryHook):  # it stays where it is for all others: no key comes free, and no room
            disposition = Disposition("remove", reason=f"left lying by node {node_of(found.name)}", outcome=End.REAPED)
            for attached_op in end_hook.attached_ops(
                as_claim(handle.state, found, handle.runtime), disposition, handle.runtime.server_clock.now
            ):
                await handle.zookeeper.ensure(attached_op.operation.path.rpartition("/")[0])
                operations.append(attached_op.operation)
    return Change(handle.state, operations)


def _date(found: ItemSnapshot) -> int:
    """When it was to be taken, ms: its due time, or else when it was put."""
    name = ItemName.parse(found.name)
    if name is not None and name.due is not None:
        return name.due
    try:
        header, _ = decode(found.item.data)
    except MalformedError:
        return found.item.stat.ctime
    return found.item.stat.ctime if header.enqueued_at is None else header.enqueued_at
