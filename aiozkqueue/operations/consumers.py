"""The consumers of a queue, read from the registry for operators. For its contents see `registration`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from aiozkqueue.errors import AccessDeniedError
from aiozkqueue.layout import LockRecord
from aiozkqueue.layout.processes import ProcessInfo
from aiozkqueue.moments import moment_at
from aiozkqueue.queue.candidates.collectors import FirstNames
from aiozkqueue.queue.commit.unclaimed import read_all, read_sets
from aiozkqueue.zookeeper import PAGE

from .held import messages_of_locks
from .listing import collect_children, list_children

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.zookeeper import Node

#: Maximum number of locks that `consumers` reads: about as many as ten sessions may hold.
LOCKS_READ = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerInfo:
    """A live session that takes from a queue."""

    client: str
    """The session's id; the ids of its own messages begin with it."""
    host: str
    pid: int
    name: str = ""
    """The name that the program gave to the session (``connect(name=...)``); empty: none."""
    since: datetime
    """When its ZooKeeper session began to take, in ZooKeeper's time."""
    messages: tuple[str, ...]
    """The ids of the messages that it holds now, including prefetched ones; of a group, its oldest message."""


async def consumers(
    handle: QueueHandle[Runtime], most: int | None = None, unreadable: list[AccessDeniedError] | None = None
) -> list[ConsumerInfo]:
    """Read the consumers, the oldest first, and the messages that each holds; see `messages_of_locks` for ``most``.

    With ``unreadable``, leave out the consumers and the messages that this user may not read, and add their errors to
    it.

    Raises: AccessDeniedError, PayloadError.
    """
    paths = handle.paths
    names = await list_children(handle, paths.consumers)
    entries = await _read(handle, [paths.consumer(name) for name in names], unreadable)
    held: dict[int, list[str]] = {}
    messages_of: Callable[[str], list[str]] = _itself
    try:
        held = await _held(handle, unreadable)
        messages_of = await messages_of_locks(handle, {lock for locks in held.values() for lock in locks}, most)
    except AccessDeniedError as error:  # for a folder, or for bundles
        if unreadable is None:
            raise
        unreadable.append(error)
    found: list[ConsumerInfo] = []
    for name, node in zip(names, entries, strict=True):
        if node is None:
            continue
        process = ProcessInfo.decode(node.data)
        messages = [message for lock in held.get(node.stat.ephemeral_owner, []) for message in messages_of(lock)]
        since = moment_at(node.stat.ctime)
        found.append(
            ConsumerInfo(
                client=entry_client(name),
                host=process.host,
                pid=process.pid,
                name=process.name,
                since=since,
                messages=tuple(sorted(messages)),
            )
        )
    return sorted(found, key=lambda consumer: (consumer.since, consumer.client))


def entry_client(name: str) -> str:
    """Return the client of a registry entry: its name without the number of its ZooKeeper session."""
    return name.rpartition("-")[0]


def _itself(lock: str) -> list[str]:
    return [lock]


async def _read(
    handle: QueueHandle[Runtime], paths: Sequence[str], unreadable: list[AccessDeniedError] | None
) -> list[Node | None]:
    """Read znodes; None for one that is gone, or that this user may not read. Raises: as `consumers`."""
    if unreadable is None:
        return await read_all(handle, paths)
    found = await read_sets(handle, [(path,) for path in paths])
    unreadable += [nodes for nodes in found if isinstance(nodes, AccessDeniedError)]
    return [None if isinstance(nodes, AccessDeniedError) else nodes[0] for nodes in found]


async def _held(handle: QueueHandle[Runtime], unreadable: list[AccessDeniedError] | None) -> dict[int, list[str]]:
    """Return the ids of the locks that each ZooKeeper session holds."""
    locks = (await collect_children(handle, handle.paths.locks, partial(FirstNames, LOCKS_READ))).in_order()
    held: defaultdict[int, list[str]] = defaultdict(list)
    while page := list(islice(locks, PAGE)):
        nodes = await _read(handle, [f"{handle.paths.locks}/{name}" for name in page], unreadable)
        for name, node in zip(page, nodes, strict=True):
            lock = handle.paths.lock_of(name)
            if node is None or lock is None or not node.stat.ephemeral_owner:
                continue
            if LockRecord.decode(node.data).end is None:
                held[node.stat.ephemeral_owner].append(lock)
    return held
