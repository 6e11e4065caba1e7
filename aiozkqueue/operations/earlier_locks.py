"""The locks of groups from a time when the queue had another order (`ordered`), and the messages that they hold.

A name of an item says which locks it may have had. The lock of several items holds the first of those that were there
when it was created, or the one that its record names.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import AccessDeniedError
from aiozkqueue.layout import LockRecord
from aiozkqueue.queue.candidates.groups import ORDERED, is_group, lock_ids
from aiozkqueue.queue.commit.unclaimed import read_sets

from .listing import walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiozkqueue.layout import StoredConfig
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.runtime.strings import Strings
    from aiozkqueue.zookeeper import Node

#: Items that are read together to find the one that a lock holds; it is usually the first.
_PAGE: Final = 20


async def held_by_earlier_locks(
    handle: QueueHandle[Runtime], config: StoredConfig, folders: Sequence[str], held: Strings
) -> set[str]:
    """Return the ids of the messages in these folders that ``held`` locks of another order hold for their group.

    This lists the folders only if a session still holds such a lock. Messages and locks that this user may not read
    are left out.

    Raises: AccessDeniedError: the folders may not be listed.
    """
    if config.ordered is None:
        return set()
    locks = [lock for lock in held if is_group(lock) and (lock == ORDERED) != config.ordered]
    found: set[str] = set()
    created: dict[str, int] = {}  # the locks of sessions, with the transactions that created them
    for lock, node in zip(locks, await _read(handle, map(handle.paths.lock, locks)), strict=True):
        record = None if node is None else LockRecord.decode(node.data)
        if record is not None and record.end is not None:
            found.add(record.claim)
        elif node is not None:
            created[lock] = node.stat.czxid
    return found | await _heads(handle, folders, created) if created else found


async def _heads(handle: QueueHandle[Runtime], folders: Sequence[str], created: dict[str, int]) -> set[str]:
    """Return the ids of the first messages that are older than these locks, which may hold them."""
    found: set[str] = set()
    async for placed in walk(handle, folders):
        candidates = (entry for entry in placed if not created.keys().isdisjoint(lock_ids(entry.item)))
        while page := list(islice(candidates, _PAGE)):
            for entry, node in zip(page, await _read(handle, [entry.path for entry in page]), strict=True):
                if node is None:
                    continue
                for lock in created.keys() & lock_ids(entry.item):
                    if node.stat.czxid < created[lock]:
                        del created[lock]
                        found.add(entry.item.id)
        if not created:
            break
    return found


async def _read(handle: QueueHandle[Runtime], paths: Iterable[str]) -> list[Node | None]:
    """Read znodes; None for one that is gone, or that this user may not read."""
    found = await read_sets(handle, [(path,) for path in paths])
    return [None if isinstance(nodes, AccessDeniedError) else nodes[0] for nodes in found]
