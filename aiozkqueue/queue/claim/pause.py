"""Waiting while a queue is paused: a watch on its configuration alone, which costs producers nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import asyncio

    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Watch, WatchEvent, ZooKeeper


class Pause:
    """Has the configuration read again, and the bell rung, when it may have changed."""

    def __init__(self, store: QueueState, wakeup: asyncio.Event) -> None:
        self._store = store
        self._wakeup = wakeup
        self._watch: Watch | None = None

    @classmethod
    async def begin(cls, zookeeper: ZooKeeper, store: QueueState, wakeup: asyncio.Event) -> Self:
        """Listen; what has changed before that is read after it. Raises: as `ZooKeeper.watch`."""
        pause = cls(store, wakeup)
        pause._watch = await zookeeper.watch(store.paths.base, pause._look_again)
        store.invalidate()
        return pause

    def end(self) -> None:
        """Listen no more."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _look_again(self, _event: WatchEvent) -> None:
        self._store.invalidate()
        self._wakeup.set()
