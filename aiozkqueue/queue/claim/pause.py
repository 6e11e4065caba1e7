"""The wait while a queue is paused. It only watches the configuration, at no cost for producers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import asyncio

    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Watch, WatchEvent, ZooKeeper


class Pause:
    """Invalidates the configuration and wakes the dispatcher when it may have changed."""

    def __init__(self, state: QueueState, wakeup: asyncio.Event) -> None:
        self._state = state
        self._wakeup = wakeup
        self._watch: Watch | None = None

    @classmethod
    async def begin(cls, zookeeper: ZooKeeper, state: QueueState, wakeup: asyncio.Event) -> Self:
        """Start to listen, then invalidate the configuration read before. Raises: as `ZooKeeper.watch`."""
        pause = cls(state, wakeup)
        pause._watch = await zookeeper.watch(state.paths.base, pause._on_change)
        state.invalidate()
        return pause

    def end(self) -> None:
        """Stop listening."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _on_change(self, _event: WatchEvent) -> None:
        self._state.invalidate()
        self._wakeup.set()
