"""Locks that end in time are taken off when they have ended, and their items offered again.

One multi a lock: remove its due node and the lock, and set the item to its own bytes, which raises the item's version:
whoever held the lock finds its claim lost. Of several who try, one succeeds; the others fail on the due node. An item
that this user may not write keeps its version: a timed lock is held by nobody who would commit by that.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.layout import ItemName, LockRecord, is_lane, priority_of
from aiozkqueue.queue.candidates.groups import is_group
from aiozkqueue.zookeeper import Check, Delete, MultiError, NoAuthError, SetData, read_apart

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from aiozkqueue.layout import QueuePaths
    from aiozkqueue.zookeeper import Node, Operation, Versioned, ZooKeeper

log: Final = logging.getLogger(__name__)


async def reap(zookeeper: ZooKeeper, paths: QueuePaths, ended: Sequence[tuple[int, str]], generation: int) -> list[str]:
    """Take off the locks that ended at these times; return the places of the items that are free because of this."""
    dues = [paths.due_node(due, message_id) for due, message_id in ended]
    due_nodes = [_known(node) for node in await _read(zookeeper, dues, generation)]
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
            continue  # whoever may read it takes it off
        operations = _removal(dues[index], lock_path, due, due_nodes[index], lock)
        place = waits[index].place if len(operations) > 1 and item is not None else None
        if operations:
            freeing = [] if place is None else _freeing(paths, place, item)
            pending.append((place, _take_off(zookeeper, paths, operations, freeing, generation)))
    outcomes = await asyncio.gather(*(outcome for _, outcome in pending), return_exceptions=True)
    freed: list[str] = []
    for (place, _), outcome in zip(pending, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome and place is not None:
            freed.append(place)
    return freed


def _freeing(paths: QueuePaths, place: str, item: Versioned | NoAuthError | None) -> list[list[Operation]]:
    """Say how to free an item and have idle consumers hear of it, best first: what this user may do is not known."""
    lane = place.rpartition("/")[0]
    wakeup = SetData(paths.at(lane) if priority_of(lane) else paths.items, b"")
    if item is None or isinstance(item, NoAuthError):
        return [[wakeup]]
    path = paths.at(place)
    return [[SetData(path, item.data, item.version)], [Check(path, item.version), wakeup]]


async def _take_off(
    zookeeper: ZooKeeper,
    paths: QueuePaths,
    operations: list[Operation],
    freeing: list[list[Operation]],
    generation: int,
) -> bool:
    """Take a lock off in the first of several ways that this user may; whether it was done by us."""
    ways = freeing or [[]]
    for number, way in enumerate(ways, 1):
        try:
            await zookeeper.multi([*operations, *way], generation=generation)
        except MultiError as error:
            if isinstance(error.error, NoAuthError) and number < len(ways):
                continue
            why = "queue %s: another consumer was quicker to remove a lock that ended: %s"
            log.debug(why, paths.name, error, extra={"queue": paths.name})
            return False
        return True
    return False


async def _read(zookeeper: ZooKeeper, paths: Sequence[str], generation: int) -> list[Versioned | NoAuthError | None]:
    """Read znodes, some of which may be closed to this user."""
    try:
        return list(await zookeeper.read_versioned(paths, generation=generation))
    except NoAuthError:
        apart = await read_apart(zookeeper, [(path,) for path in paths], generation=generation)
        return [node if isinstance(node, NoAuthError) else node[0] for node in apart]


def _known(node: Versioned | NoAuthError | None) -> Versioned | None:
    return None if isinstance(node, NoAuthError) else node


def _removal(
    due_path: str, lock_path: str, due: int, due_node: Versioned | None, lock: Versioned | None
) -> list[Operation]:
    if due_node is None:
        return []  # somebody has done it
    if lock is None or (end := LockRecord.decode(lock.data).end) is None or end > due:
        return [Delete(due_path)]  # left over: the lock is another one by now
    return [Delete(due_path), Delete(lock_path, lock.version)]


class Waiting(NamedTuple):
    """What waits for the end of a timed lock."""

    place: str | None
    """Where the item lies; None: the due node does not tell."""
    lock: str
    """What it is locked by: its id, or its group."""


def waiting(due_node: Versioned | Node | None, message_id: str) -> Waiting:
    """Read a due node: the item's place, and on a line of its own the group when that is what is locked."""
    if due_node is None:
        return Waiting(None, message_id)
    place, _, group = due_node.data.decode("utf-8", "replace").partition("\n")
    lane, _, name = place.rpartition("/")
    parsed = ItemName.parse(name)
    known = is_lane(lane) and parsed is not None and parsed.id == message_id
    return Waiting(place if known else None, group if is_group(group) and "/" not in group else message_id)
