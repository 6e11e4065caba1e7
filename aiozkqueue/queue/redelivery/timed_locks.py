"""Timed locks: a lock that has expired is removed, and its item becomes available again.

One multi per lock removes its due node and the lock, and rewrites the item with its own bytes. The rewrite raises the
item's version, so the former holder finds its claim lost. If several sessions try, one succeeds; the others fail on the
due node. An item that this user may not write keeps its version: no holder of a timed lock commits by that version.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.layout import ItemName, ItemRef, LockRecord, is_lane, lane_at, priority_of
from aiozkqueue.queue.candidates.groups import is_group
from aiozkqueue.zookeeper import Check, Delete, MultiError, NoAuthError, SetData, read_separately

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from aiozkqueue.layout import QueuePaths
    from aiozkqueue.zookeeper import Node, Operation, Versioned, ZooKeeper

log: Final = logging.getLogger(__name__)


async def reap(zookeeper: ZooKeeper, paths: QueuePaths, ended: Sequence[tuple[int, str]], generation: int) -> list[str]:
    """Remove the locks that expired at these times; return the places of the items that this has made available."""
    dues = [paths.due_node(due, message_id) for due, message_id in ended]
    due_nodes = [_readable(node) for node in await _read(zookeeper, dues, generation)]
    waits = [waiting(node, entry[1]) for node, entry in zip(due_nodes, ended, strict=True)]
    timed = await _read(
        zookeeper,
        [path for wait in waits for path in (paths.lock(wait.lock), paths.at(wait.place or "items/-"))],
        generation,
    )
    pending: list[tuple[str | None, Awaitable[bool]]] = []
    for index, (due, _) in enumerate(ended):
        lock_path, lock, item = paths.lock(waits[index].lock), timed[2 * index], timed[2 * index + 1]
        if isinstance(lock, NoAuthError):
            continue  # a session that may read the lock removes it
        operations = _removal(dues[index], lock_path, due, due_nodes[index], lock)
        frees = len(operations) > 1
        place = waits[index].place if frees and item is not None else None
        if operations:
            wakes: list[list[Operation]] = []
            if place is not None:
                wakes = _freeing(paths, place, item)
            elif frees and waits[index].place is None:  # damaged by another program: consumers have to search for it
                wakes = [[SetData(paths.items, b"")], []]
            pending.append((place, _remove_lock(zookeeper, paths, operations, wakes, generation)))
    outcomes = await asyncio.gather(*(outcome for _, outcome in pending), return_exceptions=True)
    freed: list[str] = []
    for (place, _), outcome in zip(pending, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome and place is not None:
            freed.append(place)
    return freed


def _freeing(paths: QueuePaths, place: str, item: Versioned | NoAuthError | None) -> list[list[Operation]]:
    """Return the ways to free an item and wake idle consumers, the best first: this user's permissions are unknown."""
    lane = lane_at(place)
    wakeup = SetData(paths.at(lane) if priority_of(lane) else paths.items, b"")
    if item is None or isinstance(item, NoAuthError):
        return [[wakeup]]
    path = paths.at(place)
    return [[SetData(path, item.data, item.version)], [Check(path, item.version), wakeup]]


async def _remove_lock(
    zookeeper: ZooKeeper, paths: QueuePaths, operations: list[Operation], wakes: list[list[Operation]], generation: int
) -> bool:
    """Remove a lock in the first way that this user's permissions allow; return whether this call removed it."""
    ways = wakes or [[]]
    for number, way in enumerate(ways, 1):
        try:
            await zookeeper.multi([*operations, *way], generation=generation)
        except MultiError as error:
            if isinstance(error.error, NoAuthError) and number < len(ways):
                continue
            why = "queue %s: another consumer was faster to remove an expired lock: %s"
            log.debug(why, paths.name, error, extra={"queue": paths.name})
            return False
        return True
    return False


async def _read(zookeeper: ZooKeeper, paths: Sequence[str], generation: int) -> list[Versioned | NoAuthError | None]:
    """Read znodes, some of which this user may not read."""
    try:
        return list(await zookeeper.read_versioned(paths, generation=generation))
    except NoAuthError:
        answers = await read_separately(zookeeper, [(path,) for path in paths], generation=generation)
        return [node if isinstance(node, NoAuthError) else node[0] for node in answers]


def _readable(node: Versioned | NoAuthError | None) -> Versioned | None:
    return None if isinstance(node, NoAuthError) else node


def _removal(
    due_path: str, lock_path: str, due: int, due_node: Versioned | None, lock: Versioned | None
) -> list[Operation]:
    if due_node is None:
        return []  # another session has done it
    if lock is None or (end := LockRecord.decode(lock.data).end) is None or end > due:
        return [Delete(due_path)]  # an orphan: the lock has been replaced
    return [Delete(due_path), Delete(lock_path, lock.version)]


class Waiting(NamedTuple):
    """The item and lock that a due node stands for."""

    place: str | None
    """The item's place; None: the due node does not hold it."""
    lock: str
    """The id in the lock's name: of the message, or of its group."""


def waiting(due_node: Versioned | Node | None, message_id: str) -> Waiting:
    """Parse a due node: the item's place and, on a second line, the group if the group is locked."""
    if due_node is None:
        return Waiting(None, message_id)
    place, _, group = due_node.data.decode("utf-8", "replace").partition("\n")
    lane, name = ItemRef.parse(place)
    parsed = ItemName.parse(name)
    is_item = is_lane(lane) and parsed is not None and parsed.id == message_id
    return Waiting(place if is_item else None, group if is_group(group) and "/" not in group else message_id)
