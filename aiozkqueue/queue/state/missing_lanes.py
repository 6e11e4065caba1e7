"""The lanes that puts found missing: the next opening of their queue creates these lanes and no others.

The multi that creates a lane asserts the version of the configuration that names it, and so does every put. So every
item is in a lane that is known to all consumers with this version.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from aiozkqueue.zookeeper import Check, Create, Delete, MultiError, NoAuthError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiozkqueue.layout import QueuePaths, StoredConfig
    from aiozkqueue.zookeeper import Stat, ZooKeeper

#: Lanes created in one multi.
LANES_TOGETHER = 256


class MissingLanes:
    """The lanes of one queue that one session has to create. Lanes are relative to the queue."""

    def __init__(self, zookeeper: ZooKeeper, paths: QueuePaths) -> None:
        self._zookeeper = zookeeper
        self._paths = paths
        self._wanted: set[str] = set()
        self._refused: dict[str, NoAuthError] = {}

    def want(self, lanes: Iterable[str]) -> None:
        """Register lanes to be created by the next `make`."""
        for lane in lanes:
            if lane.startswith("lanes/"):
                self._wanted.add(lane)
                self._refused.pop(lane, None)

    def refusal(self, lane: str) -> NoAuthError | None:
        """The reason why a wanted lane was not created: an ACL forbids it."""
        return self._refused.get(lane)

    async def make(self, config: StoredConfig, base: Stat) -> bool:
        """Create the wanted lanes that the configuration names.

        ``base`` is the stat of the queue's znode as the configuration was read. Returns False if the queue was deleted
        and created again since then; no lane was created in the new one.

        Raises: ZooKeeperError: MultiError also when another session was faster, or has changed the configuration.
        """
        if not self._wanted:
            return True
        wanted, self._wanted = self._wanted, set[str]()
        named = [lane for lane in config.lanes if lane in wanted]
        try:
            present = {f"lanes/{name}" for name in await self._zookeeper.children(self._paths.lanes)}
            missing = [lane for lane in named if lane not in present]
            for start in range(0, len(missing), LANES_TOGETHER):
                made = [Create(self._paths.at(lane)) for lane in missing[start : start + LANES_TOGETHER]]
                await self._zookeeper.multi([Check(self._paths.base, base.version), *made])
            if missing and not await self._is_same(base):
                await self._remove(missing)
                self._wanted |= wanted
                return False
        except BaseException as error:
            if isinstance(error, MultiError) and isinstance(error.error, NoAuthError):
                self._refused.update(dict.fromkeys(named, error.error))  # their puts fail; consumers continue
                return True
            self._wanted |= wanted
            raise
        return True

    async def _is_same(self, base: Stat) -> bool:
        """Whether this is still the queue whose configuration was read: a new queue counts its versions from 0."""
        now = await self._zookeeper.exists(self._paths.base)
        return now is not None and now.czxid == base.czxid

    async def _remove(self, lanes: Iterable[str]) -> None:
        """Remove lanes that the new configuration may not name; a lane with an item in it stays."""
        for lane in lanes:
            with suppress(MultiError):
                await self._zookeeper.multi([Delete(self._paths.at(lane))])
