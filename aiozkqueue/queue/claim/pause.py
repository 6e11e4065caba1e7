"""Waiting while a queue is paused: only a watch on its configuration, which costs producers nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import asyncio

    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Watch, WatchEvent, ZooKeeper


class Pause:
    """Has the configuration read again, and wakes the dispatcher, when it may have changed."""

    def __init__(self, state: QueueState, wakeup: asyncio.Event) -> None:
        self._state = state
        self._wakeup = wakeup
        self._watch: Watch | None = None

    @classmethod
    async def begin(cls, zookeeper: ZooKeeper, state: QueueState, wakeup: asyncio.Event) -> Self:
        """Start to listen, then invalidate what was read before. Raises: as `ZooKeeper.watch`."""
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
