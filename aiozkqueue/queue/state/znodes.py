"""The znodes below a queue's own, created when the queue is opened and again if one has been removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.zookeeper import Create

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.layout import QueueConfig, QueuePaths
    from aiozkqueue.zookeeper import ZooKeeper

#: Lanes created per multi.
LANES_TOGETHER = 256


def folders_of(paths: QueuePaths) -> list[str]:
    """Return the znodes that every queue of our own layout has."""
    return [paths.items, paths.lanes, paths.locks, paths.metas, paths.dlq, paths.consumers, paths.due, paths.keys]


async def complete(zookeeper: ZooKeeper, paths: QueuePaths, folders: Sequence[str], config: QueueConfig) -> None:
    """Create the missing znodes of a queue: ``folders``, the lanes, and others that its configuration requires.

    Raises: ZooKeeperError: MultiError also if another process has created one of them meanwhile.
    """
    present = await zookeeper.children(paths.base)
    wanted = [*folders, paths.later] if config.scheduled else folders
    missing = [Create(path) for path in wanted if path.rpartition("/")[2] not in present]
    if missing:
        await zookeeper.multi(missing)
    await _complete_lanes(zookeeper, paths, config)


async def _complete_lanes(zookeeper: ZooKeeper, paths: QueuePaths, config: QueueConfig) -> None:
    lanes = [paths.at(lane) for lane in config.lanes if lane != "items"]
    if not lanes:
        return
    present = {f"{paths.lanes}/{name}" for name in await zookeeper.children(paths.lanes)}
    missing = [Create(lane) for lane in lanes if lane not in present]
    for start in range(0, len(missing), LANES_TOGETHER):
        await zookeeper.multi(missing[start : start + LANES_TOGETHER])
