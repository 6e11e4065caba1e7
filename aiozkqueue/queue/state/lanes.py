"""The choice of the lane for the next item, from the queue's configuration. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from aiozkqueue.layout import lane_of

if TYPE_CHECKING:
    from random import Random

    from aiozkqueue.layout import QueueConfig, QueuePaths


class PutLanes:
    """The lanes for new items, used in rotation."""

    __slots__ = ("_lanes", "_paths", "_plain", "_turn")

    def __init__(self, config: QueueConfig, paths: QueuePaths, random: Random | None = None) -> None:
        self._lanes = {tier.priority: tier.put_lanes for tier in config.tiers}
        self._plain = self._lanes[0]
        self._paths = [paths.at(lane) for lane in self._plain]
        self._turn = 0 if random is None else random.randrange(len(self._plain))

    def __contains__(self, priority: int) -> bool:
        """Whether a priority has lanes."""
        return priority in self._lanes

    def next(self) -> str:
        """Return the next lane for plain items, relative to the queue."""
        self._turn = (self._turn + 1) % len(self._plain)
        return self._plain[self._turn]

    def next_path(self) -> str:
        """Return the path of the next lane for plain items."""
        paths = self._paths
        if len(paths) == 1:
            return paths[0]
        self._turn = (self._turn + 1) % len(paths)
        return paths[self._turn]

    def of_key(self, key: str) -> str:
        """Return the lane for items that must share a lane because of ``key``, relative to the queue."""
        return self._plain[crc32(key.encode()) % len(self._plain)]

    def of_priority(self, priority: int) -> str:
        """Return the next lane of a priority.

        For a priority without lanes, return a lane that does not exist: the put is refused, and then repaired.
        """
        lanes = self._lanes.get(priority)
        if lanes is None:
            return lane_of(0, 0, priority)
        self._turn = (self._turn + 1) % len(lanes)
        return lanes[self._turn]


def lane_of_group(config: QueueConfig, group: str) -> str:
    """Return the lane of a group's next item, by the group's hash."""
    shard = crc32(group.encode()) % (config.groups or 1)
    return lane_of(shard, config.generations.get(shard, (0, 0))[1])
