"""Work stealing: an idle consumer takes other consumers' stale items after reading only their locks.

Watches report which items exist. Many consumers may be idle at the same time. If each of them listed the queue to find
out which items are locked, the listings would cost the server more than the messages do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from aiozkqueue.layout import QueuePaths
    from aiozkqueue.queue.candidates.backlog import Backlog
    from aiozkqueue.queue.candidates.priorities import PriorityIndex
    from aiozkqueue.runtime.clock import Clock, Timer
    from aiozkqueue.zookeeper import ZooKeeper

#: Items whose locks are read in one request. If more may be taken, the locks are listed instead.
READ_LIMIT: Final = 100


class WorkStealer:
    """Finds other consumers' items that one session may take."""

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
        """Return a few places of free items whose own consumers have had their time; None: a listing is needed.

        Raises: SessionExpiredError, ConnectionLossError of the zookeeper package.
        """
        stale = backlog.stealable(self._excluded, READ_LIMIT, self._clock.monotonic())
        if not stale:
            return stale
        locks, locked = self._lock_ids(stale), set[str]()
        backlog.begin_lock_read()
        try:
            nodes = await self._zookeeper.read_many([self._paths.lock(lock) for lock in locks], generation=generation)
            locked.update(lock for lock, node in zip(locks, nodes, strict=True) if node is not None)
        finally:
            backlog.end_lock_read(locked)
        return backlog.take_over(stale, limit, self._excluded, self._clock.monotonic())


class StealTimer:
    """Sets ``wakeup`` when other consumers' items become due for work stealing. Most are gone by then, and set nothing.

    Items with ``excluded`` ids do not count: a held one may be listed as another consumer's.
    """

    def __init__(
        self, levels: PriorityIndex, clock: Clock, excluded: Callable[[str], bool], wakeup: asyncio.Event
    ) -> None:
        self._levels = levels
        self._clock = clock
        self._excluded = excluded
        self._wakeup = wakeup
        self._timer: Timer | None = None
        self.stale_due: bool = False
        """Whether such items may have become due since the last search."""

    def schedule(self) -> None:
        """Start the timer, unless it runs."""
        if self._timer is None:
            self._wait(self._levels.no_steal_before)

    def cancel(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def update(self) -> None:
        """Record whether items are due now."""
        self.stale_due = self._any_due()

    def _any_due(self) -> bool:
        return self._levels.may_steal(self._excluded, self._clock.monotonic())

    def _wait(self, moment: float | None) -> None:
        if moment is not None:
            wait = max(0.0, moment - self._clock.monotonic())
            self._timer = self._clock.call_later(wait, self._due)

    def _due(self) -> None:
        self._timer = None
        if self._any_due():
            self._wakeup.set()
        else:
            self._wait(self._levels.next_steal(self._excluded))
