"""The znodes that a queue consists of beside its own: made when it is opened, and anew when somebody removed one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.zookeeper import Create

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.layout import QueueConfig, QueuePaths
    from aiozkqueue.zookeeper import ZooKeeper

#: Lanes created in one multi.
LANES_TOGETHER = 256


def folders_of(paths: QueuePaths) -> list[str]:
    """Return those that every queue of our own layout has."""
    return [paths.items, paths.lanes, paths.locks, paths.metas, paths.dlq, paths.consumers, paths.due, paths.keys]


async def complete(zookeeper: ZooKeeper, paths: QueuePaths, folders: Sequence[str], config: QueueConfig) -> None:
    """Create what is missing of a queue: of these folders, and of the lanes and what else its configuration asks for.

    Raises: ZooKeeperError: MultiError also when another process was quicker with one of them.
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
