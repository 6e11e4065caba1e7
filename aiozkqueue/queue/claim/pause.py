"""The wait while a queue is paused or does not exist. It only watches the queue's znode, at no cost for producers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    import asyncio

    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Watch, WatchEvent, ZooKeeper

log: Final = logging.getLogger(__name__)


class Reason(NamedTuple):
    """The reason why nothing is claimed, for the log."""

    begins: str
    ends: str


PAUSED: Final = Reason("is paused: its messages are delivered again after it is resumed", "is resumed")
ABSENT: Final = Reason("does not exist: its first put creates it", "exists now")


class Pause:
    """Invalidates the configuration and wakes the dispatcher when it may have changed."""

    def __init__(self, state: QueueState, wakeup: asyncio.Event, reason: Reason) -> None:
        self._state = state
        self._wakeup = wakeup
        self._watch: Watch | None = None
        self.reason = reason

    @classmethod
    async def begin(cls, zookeeper: ZooKeeper, state: QueueState, wakeup: asyncio.Event, reason: Reason) -> Self:
        """Start to listen, then invalidate the configuration read before. Raises: as `ZooKeeper.watch`."""
        pause = cls(state, wakeup, reason)
        pause._watch = await zookeeper.watch(state.paths.base, pause._on_change)
        state.invalidate()
        log.info("queue %s %s", state.name, reason.begins, extra={"queue": state.name})
        return pause

    def end(self, *, over: bool) -> None:
        """Stop listening; with ``over``, log the end of the wait."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if over:
            log.info("queue %s %s", self._state.name, self.reason.ends, extra={"queue": self._state.name})

    def _on_change(self, _event: WatchEvent) -> None:
        self._state.invalidate()
        self._wakeup.set()
