"""Messages that a stream can neither read nor remove: each is told of once, and the stream goes on."""

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
    """What is in the way of one stream of one queue."""

    def __init__(self, state: QueueState, group: str) -> None:
        self._state = state
        self._group = group
        self._sealed: set[str] = set()

    async def look(self, zookeeper: ZooKeeper, path: str) -> Stat | None:
        """Look at an item; one that this user may not read is passed by, as if it were not there."""
        try:
            return await zookeeper.exists(path)
        except NoAuthError as error:
            if path not in self._sealed:
                self._sealed.add(path)
                log.warning(
                    "queue %s: stream %r passes a message by that may not be read by this user: %s; let this user read "
                    "it, or remove it",
                    self._state.name,
                    self._group,
                    error,
                    extra={"queue": self._state.name},
                )
            return None

    def without_sealed(self, places: list[str]) -> list[str]:
        """Leave out what is known to be closed to this user."""
        if not self._sealed:
            return places
        return [place for place in places if self._state.paths.at(place) not in self._sealed]

    def tell_kept(self, found: ItemSnapshot, path: str) -> None:
        """Tell of a message that has been handled and cannot be deleted. It stays locked: nobody is handed it again."""
        log.error(
            "queue %s: stream %r has handled message %s, which cannot be removed, since there are znodes below %s: it "
            "stays locked; delete it and %s by hand",
            self._state.name,
            self._group,
            found.id,
            path,
            self._state.paths.lock(found.locked_by),
            extra={"queue": self._state.name},
        )
