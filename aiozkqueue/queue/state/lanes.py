"""The choice of the lane for the next item, from the queue's configuration. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from aiozkqueue.layout import lane_of

if TYPE_CHECKING:
    from random import Random

    from aiozkqueue.layout import QueuePaths, StoredConfig


class PutLanes:
    """The lanes for new items, used in rotation."""

    __slots__ = ("_chosen", "_config", "_lanes", "_paths", "_plain", "only_path", "turn")

    def __init__(self, config: StoredConfig, paths: QueuePaths, random: Random | None = None) -> None:
        self._config = config
        self._lanes = {tier.priority: tier.put_lanes for tier in config.tiers}
        self._plain = self._lanes[0]
        self._paths = {lane: paths.at(lane) for lane in self._plain}
        self.only_path: str | None = self._paths[self._plain[0]] if len(self._plain) == 1 else None
        """The result of every `next_path`; None: there are several lanes."""
        self.turn: int = 0 if random is None else random.randrange(len(self._plain))
        """How many times one lane of several has been chosen; `rewind` takes choices back."""
        self._chosen: set[str] = set()

    def __contains__(self, priority: int) -> bool:
        """Whether a priority has lanes."""
        return priority in self._lanes

    def next(self) -> str:
        """Return the next lane for plain items, relative to the queue."""
        return self._plain[0] if len(self._plain) == 1 else self._choose(self._plain)

    def next_path(self) -> str:
        """Return the path of the next lane for plain items."""
        return self.only_path or self._paths[self.next()]

    def of_key(self, key: str) -> str:
        """Return the lane for items that must share a lane because of ``key``, relative to the queue."""
        return self.of_priority(0, key)

    def of_group(self, group: str) -> str:
        """Return the lane of a group's next item, by the group's hash, relative to the queue."""
        shard = crc32(group.encode()) % (self._config.groups or 1)
        return self._note(lane_of(shard, self._config.generations.get(shard, (0, 0))[1]))

    def of_priority(self, priority: int, key: str | None = None) -> str:
        """Return the next lane of a priority, or the lane that all its items with ``key`` share.

        For a priority that the configuration does not name, return a lane that does not exist: the put is refused, and
        then repaired.
        """
        lanes = self._lanes.get(priority)
        if lanes is None:
            return lane_of(0, 0, priority)
        return self._choose(lanes) if key is None else self._note(lanes[crc32(key.encode()) % len(lanes)])

    def take_chosen(self) -> set[str]:
        """Return the lanes chosen since the last call: some of them may be missing, if a put was refused for one."""
        chosen, self._chosen = self._chosen, set()
        return chosen

    def rewind(self, turn: int) -> None:
        """Choose the same lanes again that were chosen since this turn, for puts that found one of them missing."""
        self.turn = min(self.turn, turn)

    def _choose(self, lanes: tuple[str, ...]) -> str:
        self.turn += 1
        return self._note(lanes[self.turn % len(lanes)])

    def _note(self, lane: str) -> str:
        self._chosen.add(lane)
        return lane
