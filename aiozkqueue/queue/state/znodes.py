"""The znodes below a queue's own, created when the queue is opened and again if one has been removed.

Lanes are not among them: the first put to a lane creates it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.layout import name_at
from aiozkqueue.zookeeper import Create

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.layout import QueuePaths, StoredConfig
    from aiozkqueue.zookeeper import ZooKeeper


def folders_of(paths: QueuePaths) -> list[str]:
    """Return the znodes that every queue of our own layout has."""
    return [paths.items, paths.lanes, paths.locks, paths.metas, paths.dlq, paths.consumers, paths.due, paths.keys]


async def complete(zookeeper: ZooKeeper, paths: QueuePaths, folders: Sequence[str], config: StoredConfig) -> None:
    """Create the missing znodes of a queue: ``folders``, and others that its configuration requires.

    Raises: ZooKeeperError: MultiError also if another process has created one of them meanwhile.
    """
    present = await zookeeper.children(paths.base)
    wanted = [*folders, paths.later] if config.scheduled else folders
    missing = [Create(path) for path in wanted if name_at(path) not in present]
    if missing:
        await zookeeper.multi(missing)
