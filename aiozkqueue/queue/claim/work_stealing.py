"""What other consumers leave lying, as watches tell: one that is free takes some of it after a look at the locks alone.

Many consumers are idle at a time. If each of them listed the queue to see which items are locked, the listings would
cost the server more than the messages do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiozkqueue.layout import QueuePaths
    from aiozkqueue.queue.candidates.backlog import Backlog
    from aiozkqueue.queue.runtime.clock import Clock
    from aiozkqueue.zookeeper import ZooKeeper

#: Items whose locks are read in one request; where more may be taken, a listing tells of all locks.
LOOKED_AT: Final = 100


class LeftLying:
    """Finds what one session may take over of a queue."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        paths: QueuePaths,
        clock: Clock,
        *,
        excluded: Callable[[str], bool],
        lock_ids: Callable[[Sequence[str]], Sequence[str]],
    ) -> None:
        self._zookeeper = zookeeper
        self._paths = paths
        self._clock = clock
        self._excluded = excluded
        self._lock_ids = lock_ids

    async def take_over(self, backlog: Backlog, limit: int, generation: int) -> list[str] | None:
        """Return a few places whose items are free and whose consumers have had their time; None: a listing must tell.

        Raises: SessionExpiredError, ConnectionLossError of the zookeeper package.
        """
        lying = backlog.lying(self._excluded, LOOKED_AT, self._clock.monotonic())
        if not lying:
            return lying
        locks, locked = self._lock_ids(lying), set[str]()
        backlog.begin_look()
        try:
            nodes = await self._zookeeper.read_many([self._paths.lock(one) for one in locks], generation=generation)
            locked.update(lock for lock, node in zip(locks, nodes, strict=True) if node is not None)
        finally:
            backlog.end_look(locked)
        return backlog.take_over(lying, limit, self._excluded, self._clock.monotonic())
