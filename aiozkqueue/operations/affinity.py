"""Reassigns messages of a sticky queue (`QueueConfig.affinity`) that their own node leaves waiting too long.

A session never reassigns messages of its own node: another session of that node may be working through them, and the
producer's session cannot know. Sessions of other nodes do it.

One multi removes the item and creates it without the node's field, under the same id, so that it keeps its attempts,
its keys and its place in the order; the history gets a record that it was reaped. The multi is refused if another
client has reassigned or claimed the item.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from aiozkqueue.layout import (
    End,
    ItemName,
    ItemRef,
    LockRecord,
    MalformedError,
    decode,
    encode,
    item_node,
)
from aiozkqueue.moments import milliseconds_in
from aiozkqueue.queue.commit.conditional import Change, apply
from aiozkqueue.queue.commit.dispositions import Disposition
from aiozkqueue.queue.commit.history import HistoryHook
from aiozkqueue.queue.commit.register import server_time
from aiozkqueue.queue.commit.unclaimed import as_claim, as_configured, find
from aiozkqueue.runtime.acl_errors import translate_denials
from aiozkqueue.zookeeper import Create, Delete, SetData, parent_of

from .listing import by_rank, locked_ids, walk
from .stats import lanes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.commit.unclaimed import ItemSnapshot
    from aiozkqueue.zookeeper import Operation

#: Default: seconds after its due date until a message that its node has not taken is reassigned.
REAP_AFTER: Final = 600.0
#: Default: seconds between two checks for such messages.
REAP_EVERY: Final = 180.0
#: Default: maximum number of messages that one check reassigns, the oldest first.
REAP_LIMIT: Final = 10
_PAGE: Final = 50
#: What a pass of the janitor records about a queue that it has found paused.
PAUSED: Final = "paused"
#: Of the last pass: `PAUSED`, or when a pass first found the queue resumed, ms; None: no pause that still matters.
Resumed: TypeAlias = "Literal['paused'] | int | None"


async def reassign(handle: QueueHandle[Runtime], limit: int | None = None) -> int:
    """Reassign the oldest messages that other nodes have left waiting for too long; return how many.

    One pass reassigns up to ``limit`` messages (None: as configured). It leaves messages that a consumer holds, that
    wait for a retry, or that this session's own node has put.
    """
    handle.state.invalidate()  # a session that does not take is not notified of configuration changes
    if not await handle.state.open_existing():
        return 0
    config = handle.config
    if config.affinity != "producer":
        return 0
    latest = await _latest(handle)
    most = limit or config.reap_limit or REAP_LIMIT
    locked = await locked_ids(handle)
    late: list[ItemSnapshot] = []
    for folders in by_rank(handle.state, await lanes(handle)):
        of_rank = 0
        async for places in _overdue(handle, folders, locked, latest):
            found = await find(handle, places, unreadable={})  # `doctor` reports unreadable messages
            older = [snapshot for snapshot in found if snapshot.lock is None and _date(snapshot) <= latest]
            late += older
            of_rank += len(older)
            if not older or of_rank >= most:
                break  # the following items in these folders were put later
    late = sorted(late, key=_date)[:most]
    changes = [await _reassignment(handle, snapshot) for snapshot in late]
    reaped = sum(await apply(handle.runtime, changes))
    if handle.runtime.meter is not None:
        handle.runtime.meter.of(handle.name).reaped += reaped
    return reaped


class ReapResult(NamedTuple):
    """The result of a pass of the janitor."""

    reaped: int
    resumed: Resumed
    """The fact that the next pass gets; see `reassign_neglected`."""


async def reassign_neglected(handle: QueueHandle[Runtime], resumed: object) -> ReapResult:
    """Reassign as `reassign` does, if the nodes have had the time to take their messages since the last pause.

    ``resumed`` is that of the last pass: `PAUSED` of a paused queue. The first pass after the pause notes its time, and
    nothing is reassigned for ``reap_after`` seconds from then on.
    """
    handle.state.invalidate()
    if await handle.state.open_existing() and handle.config.paused:
        return ReapResult(0, PAUSED)
    since: int | None = None
    if resumed == PAUSED:
        since = await server_time(handle.runtime, f"queue {handle.state.name!r}")
    elif isinstance(resumed, int):
        since = resumed
    if since is not None and since > await _latest(handle):
        return ReapResult(0, since)
    return ReapResult(await reassign(handle), None)


async def _latest(handle: QueueHandle[Runtime]) -> int:
    """Return the time, ms, up to which a message must have become available to be late now."""
    after = REAP_AFTER if handle.config.reap_after is None else handle.config.reap_after
    now = await server_time(handle.runtime, f"queue {handle.state.name!r}")
    return now - milliseconds_in(float(after))  # type: ignore[arg-type]  # seconds, once checked


async def _overdue(
    handle: QueueHandle[Runtime], folders: list[str], locked: Collection[str | None], latest: int
) -> AsyncIterator[list[str]]:
    """Yield the places of other nodes' messages that no consumer holds, the oldest first, a few at a time."""

    def of_another(name: str) -> bool:
        return item_node(name) not in (None, handle.runtime.node)

    async for listed in walk(handle, folders, of_another):
        places = [
            handle.paths.place_of(entry.path)
            for entry in listed
            if entry.item.id not in locked and (entry.item.due is None or entry.item.due <= latest)
        ]
        for start in range(0, len(places), _PAGE):
            yield places[start : start + _PAGE]


async def _reassignment(handle: QueueHandle[Runtime], found: ItemSnapshot) -> Change:
    """Return the change that reassigns an item to all nodes; it is refused if the item is held or gone."""
    paths = handle.paths
    lock = LockRecord(handle.runtime.ids.next(), handle.runtime.ids.client).encode()
    try:
        header, body = decode(found.item.data)
    except MalformedError:
        data = found.item.data  # the consumer that takes it finds that out
    else:
        enqueued = header.put_at(found.item.stat.ctime)
        data = encode(body, replace(header, enqueued_at=enqueued))
    target = paths.at(ItemRef.parse(found.place).without_node().path)
    operations: list[Operation] = [
        Create(paths.lock(found.lock_id), lock),
        Delete(paths.at(found.place), found.item.stat.version),
        Create(target),  # without the data, because a request may hold only one payload
        SetData(target, data, 0),  # an item at version 0 counts as one without an attempt record
        Delete(paths.lock(found.lock_id)),
    ]
    operations += await _records(handle, found)
    return as_configured(found, Change(handle.state, operations))


async def _records(handle: QueueHandle[Runtime], found: ItemSnapshot) -> list[Operation]:
    """Return the operations that record the reassignment, if the queue has a history.

    For other features, the message stays in the queue: it frees no key and no capacity.

    Raises: AccessDeniedError.
    """
    reason = f"not taken by node {item_node(found.name)}"
    disposition = Disposition("remove", reason=reason, outcome=End.REAPED, replaced=True)
    operations: list[Operation] = []
    for end_hook in handle.state.snapshot.end_hooks:
        if isinstance(end_hook, HistoryHook):
            claim, now = as_claim(handle.state, found, handle.runtime), handle.runtime.server_clock.now
            operations += [attached.operation for attached in end_hook.attached_ops(claim, disposition, now)]
    with translate_denials(handle.name):
        for operation in operations:
            await handle.zookeeper.ensure(parent_of(operation.path))
    return operations


def _date(found: ItemSnapshot) -> int:
    """Return its due time, or otherwise the time of its put, in ms."""
    name = ItemName.parse(found.name)
    if name is not None and name.due is not None:
        return name.due
    try:
        header, _ = decode(found.item.data)
    except MalformedError:
        return found.item.stat.ctime
    return header.put_at(found.item.stat.ctime)
