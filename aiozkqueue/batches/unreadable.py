"""Messages that a stream can neither read nor remove: each is logged once, and the stream continues."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from aiozkqueue.zookeeper import NoAuthError

if TYPE_CHECKING:
    from aiozkqueue.queue.commit.unclaimed import ItemSnapshot
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Stat, ZooKeeper

log: Final = logging.getLogger(__name__)


class Obstacles:
    """The unreadable and undeletable messages of one stream of one queue."""

    def __init__(self, state: QueueState, group: str) -> None:
        self._state = state
        self._group = group
        self._unreadable: set[str] = set()

    async def read(self, zookeeper: ZooKeeper, path: str) -> Stat | None:
        """Read an item; an item that this user may not read is skipped, as if it did not exist."""
        try:
            return await zookeeper.exists(path)
        except NoAuthError as error:
            if path not in self._unreadable:
                self._unreadable.add(path)
                log.warning(
                    "queue %s: stream %r skips a message that this user may not read: %s; let this user read it, or "
                    "remove it",
                    self._state.name,
                    self._group,
                    error,
                    extra={"queue": self._state.name},
                )
            return None

    def without_unreadable(self, places: list[str]) -> list[str]:
        """Leave out places that this user is known not to be allowed to read."""
        if not self._unreadable:
            return places
        return [place for place in places if self._state.paths.at(place) not in self._unreadable]

    def log_kept(self, found: ItemSnapshot, path: str) -> None:
        """Log a message that has been handled and cannot be deleted. It stays locked, and is not delivered again."""
        log.error(
            "queue %s: stream %r has handled message %s, which cannot be removed, because there are znodes below %s: "
            "it stays locked; delete it and %s manually",
            self._state.name,
            self._group,
            found.id,
            path,
            self._state.paths.lock(found.lock_id),
            extra={"queue": self._state.name},
        )
