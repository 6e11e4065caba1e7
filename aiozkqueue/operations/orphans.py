"""Finds orphaned znodes, which the doctor reports and clean-up removes.

Nothing is locked, and a busy queue changes during the search. Possible orphans are therefore listed
*before* the znodes that they depend on, and checked a second time.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.layout import ClientPaths, LockRecord, parse_bundle_record, parse_due, parse_lock, parse_meta
from aiozkqueue.queue.candidates.batches import is_batch_lock
from aiozkqueue.queue.candidates.groups import is_group
from aiozkqueue.queue.redelivery.timed_locks import waiting
from aiozkqueue.zookeeper import PAGE, NoAuthError, below, read_pages

from .ledger_pages import is_of_ledger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence

    from aiozkqueue.layout import QueuePaths
    from aiozkqueue.zookeeper import Node, Stat, ZooKeeper

#: Seconds after which no client reads a commit slot any more.
SLOT_LIFETIME: Final = 24 * 3600.0
#: Seconds by which a lock may outlive its item or its end: its holder may be about to remove it.
ORPHAN_AGE: Final = 30.0


class OrphanedZnode(NamedTuple):
    """An orphaned znode and its data."""

    name: str
    node: Node


class Locks(NamedTuple):
    """Locks that are orphaned or overdue."""

    endless: list[OrphanedZnode]
    """Locks that end neither with a session nor at a time."""
    unannounced: list[OrphanedZnode]
    """Timed locks without the due node that ends them."""
    orphans: list[OrphanedZnode]
    """Locks whose item is gone."""
    overdue: int
    """The number of locks that should have been removed a while ago."""


async def bad_locks(
    zookeeper: ZooKeeper, paths: QueuePaths, locks: Iterable[str], now: float, orphans: Collection[str] = ()
) -> AsyncIterator[Locks]:
    """Check these locks at a time (seconds since 1970), given those of the ids for which no item was found.

    Like each search of this module, it reads a page at a time, and yields the findings of the page.
    """
    for page in _pages(locks):
        yield await _bad_locks(zookeeper, paths, page, now, orphans)


def _pages(names: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(names)
    while page := list(islice(remaining, PAGE)):
        yield page


async def _bad_locks(
    zookeeper: ZooKeeper, paths: QueuePaths, locks: Sequence[str], now: float, orphans: Collection[str]
) -> Locks:
    found = Locks([], [], [], 0)
    overdue = 0
    nodes = await read_pages(zookeeper, [f"{paths.locks}/{name}" for name in locks])
    dues = [_due_of(paths, name, node) or paths.due for name, node in zip(locks, nodes, strict=True)]
    announced = await read_pages(zookeeper, dues)
    again = await read_pages(zookeeper, [f"{paths.locks}/{name}" for name in locks])
    for name, node, due, after in zip(locks, nodes, announced, again, strict=True):
        message_id = parse_lock(name)
        if node is None or after is None or after.stat.mzxid != node.stat.mzxid or message_id is None:
            continue  # it has ended, or another has begun
        record = LockRecord.decode(node.data)
        end = record.end
        if is_batch_lock(message_id):
            continue  # of a batch that is not complete, maybe before its first item
        if message_id in orphans and now - node.stat.ctime / 1000 > ORPHAN_AGE:
            found.orphans.append(OrphanedZnode(name, node))
        elif node.stat.ephemeral_owner or is_of_ledger(record):
            continue
        elif end is None:
            found.endless.append(OrphanedZnode(name, node))
        elif due is None:
            found.unannounced.append(OrphanedZnode(name, node))
        else:
            overdue += now - end / 1000 > ORPHAN_AGE
    return found._replace(overdue=overdue)


async def orphan_dues(zookeeper: ZooKeeper, paths: QueuePaths, dues: Iterable[str]) -> AsyncIterator[list[str]]:
    """Find the due nodes whose lock is gone, and children that are not due nodes."""
    for page in _pages(dues):
        timed = [(name, parsed[1]) for name in page if (parsed := parse_due(name)) is not None]
        nodes = await read_pages(zookeeper, [f"{paths.due}/{name}" for name, _ in timed])
        waits = [waiting(node, message_id) for node, (_, message_id) in zip(nodes, timed, strict=True)]
        locks = await read_pages(zookeeper, [paths.lock(wait.lock) for wait in waits])
        alone = [name for (name, _), lock in zip(timed, locks, strict=True) if lock is None]
        yield [due.name for due in await still_existing(zookeeper, paths.due, alone)]
        yield [name for name in page if parse_due(name) is None]


def record_id(name: str) -> str | None:
    """Return the id of the message or bundle in the name of a record in ``meta/``; None if the name is not one."""
    return parse_meta(name) or parse_bundle_record(name)


async def orphan_metas(
    zookeeper: ZooKeeper, paths: QueuePaths, metas: Iterable[str], is_orphan: Callable[[str | None], bool]
) -> AsyncIterator[list[OrphanedZnode]]:
    """Find the attempt records whose item does not exist, judged by its id; they were listed before the items."""
    for page in _pages(metas):
        yield await still_existing(zookeeper, paths.metas, [name for name in page if is_orphan(record_id(name))])
        await asyncio.sleep(0)


async def still_existing(zookeeper: ZooKeeper, folder: str, names: Sequence[str]) -> list[OrphanedZnode]:
    """Return those that still exist."""
    nodes = await read_pages(zookeeper, [f"{folder}/{name}" for name in names])
    return [OrphanedZnode(name, node) for name, node in zip(names, nodes, strict=True) if node is not None]


class OldClient(NamedTuple):
    """A client's folder that has not been written for a day, and its commit slots with their versions."""

    folder: str
    slots: list[tuple[str, int]]


async def old_clients(zookeeper: ZooKeeper, root: str, now: float) -> list[OldClient]:
    """Find the folders of clients that have not committed for `SLOT_LIFETIME` at a time (seconds since 1970).

    Folders with a znode that this user may not read are left to the sessions of their own users.
    """
    clients = ClientPaths(root, "-").clients
    old: list[OldClient] = []
    for name in await below(zookeeper, clients):
        folder = f"{clients}/{name}"
        try:
            slots = [f"{folder}/{slot}" for slot in await below(zookeeper, folder)]
            about, *stats = await asyncio.gather(*map(zookeeper.exists, (folder, *slots)))
        except NoAuthError:
            continue
        known: list[Stat] = [stat for stat in (about, *stats) if stat is not None]
        if not known or any(stat.ephemeral_owner for stat in known):
            continue
        if now - max(stat.mtime for stat in known) / 1000 > SLOT_LIFETIME:
            versions = [(path, stat.version) for path, stat in zip(slots, stats, strict=True) if stat is not None]
            old.append(OldClient(folder, versions))
    return old


def _due_of(paths: QueuePaths, name: str, node: Node | None) -> str | None:
    """The due node that ends a timed lock."""
    lock = parse_lock(name)
    record = None if node is None else LockRecord.decode(node.data)
    if lock is None or record is None or record.end is None:
        return None
    # A group's lock names the waiting message as its claim.
    return paths.due_node(record.end, record.claim if is_group(lock) else lock)
