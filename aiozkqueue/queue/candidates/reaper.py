"""Locks that end in time are taken off when they have ended, and their items offered again.

One multi a lock: remove its due node and the lock, and set the item to its own bytes, which raises the item's version:
whoever held the lock finds its claim lost. Of several who try, one succeeds; the others fail on the due node.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.layout import ItemName, LockRecord, is_lane
from aiozkqueue.zookeeper import Delete, MultiError, SetData

from .groups import is_group

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from aiozkqueue.layout import QueuePaths
    from aiozkqueue.zookeeper import Node, Operation, Result, ZooKeeper

log: Final = logging.getLogger(__name__)


async def reap(zookeeper: ZooKeeper, paths: QueuePaths, ended: Sequence[tuple[int, str]], generation: int) -> list[str]:
    """Take off the locks that ended at these times; return the places of the items that are free because of this."""
    dues = [paths.due_node(due, message_id) for due, message_id in ended]
    nodes = await zookeeper.read_many(dues, generation=generation)
    waits = [waiting(node, entry[1]) for node, entry in zip(nodes, ended, strict=True)]
    timed = await zookeeper.read_many(
        [path for wait in waits for path in (paths.lock(wait.lock), paths.at(wait.place or "items/-"))],
        generation=generation,
    )
    freed: list[str] = []
    pending: list[tuple[str | None, Awaitable[list[Result]]]] = []
    for index, (due, _) in enumerate(ended):
        lock_path, lock, item = paths.lock(waits[index].lock), timed[2 * index], timed[2 * index + 1]
        operations = _removal(dues[index], lock_path, due, nodes[index], lock)
        place = waits[index].place
        if not operations:
            continue
        if len(operations) > 1 and place is not None and item is not None:
            operations.append(SetData(paths.at(place), item.data, item.stat.version))
        else:
            place = None
        pending.append((place, zookeeper.multi(operations, generation=generation)))
    outcomes = await asyncio.gather(*(outcome for _, outcome in pending), return_exceptions=True)
    for (place, _), outcome in zip(pending, outcomes, strict=True):
        if isinstance(outcome, MultiError):
            told = {"queue": paths.base.rpartition("/")[2]}
            log.debug("another consumer was quicker to take off a lock that ended: %s", outcome, extra=told)
        elif isinstance(outcome, BaseException):
            raise outcome
        elif place is not None:
            freed.append(place)
    return freed


def _removal(due_path: str, lock_path: str, due: int, due_node: Node | None, lock: Node | None) -> list[Operation]:
    if due_node is None:
        return []  # somebody has done it
    if lock is None or (end := LockRecord.decode(lock.data).end) is None or end > due:
        return [Delete(due_path)]  # left over: the lock is another one by now
    return [Delete(due_path), Delete(lock_path, lock.stat.version)]


class Waiting(NamedTuple):
    """What waits for the end of a timed lock."""

    place: str | None
    """Where the item lies; None: the due node does not tell."""
    lock: str
    """What it is locked by: its id, or its group."""


def waiting(due_node: Node | None, message_id: str) -> Waiting:
    """Read a due node: the item's place, and on a line of its own the group when that is what is locked."""
    if due_node is None:
        return Waiting(None, message_id)
    place, _, group = due_node.data.decode("utf-8", "replace").partition("\n")
    lane, _, name = place.rpartition("/")
    parsed = ItemName.parse(name)
    known = is_lane(lane) and parsed is not None and parsed.id == message_id
    return Waiting(place if known else None, group if is_group(group) and "/" not in group else message_id)
