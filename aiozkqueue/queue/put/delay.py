"""The place of an item that has a priority or a due time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.layout import LAST_MOMENT, ItemRef, later_of, scheduled_prefix, unscheduled_prefix
from aiozkqueue.queue.commit.put_plan import PutPlan

if TYPE_CHECKING:
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime


class DelayedPlace:
    """The place of one put, by its priority and due time. A due time in the past puts the item without a delay."""

    __slots__ = ("_delay", "_due", "_from", "_past", "_priority", "_runtime", "_state", "key")

    def __init__(self, handle: QueueHandle[Runtime], priority: int, *, due: int | None, delay: float | None) -> None:
        """``due`` is in milliseconds of ZooKeeper's time; ``delay`` is in seconds from now and replaces it."""
        self._runtime = handle.runtime
        self._state = handle.state
        self._priority = priority
        self._due = due
        self._delay = delay
        self._from = handle.runtime.clock.monotonic()
        self._past = False  # whether the due time has been seen to be over
        self.key: str | None = None
        """The key of a queue with compaction: all items of a key and a priority share a lane."""

    @property
    def ready(self) -> bool:
        """See `Place`."""
        return self._time_known and self._state.admits(self._priority, scheduled=self._scheduled)

    @property
    def _time_known(self) -> bool:
        """Whether ZooKeeper's time is known precisely enough."""
        clock = self._runtime.server_clock
        if self._due is None:
            return self._delay is None or clock.bounded
        return self._past or clock.bounded or self._due > clock.now()

    @property
    def needs_time(self) -> bool:
        """See `Place`."""
        return self._due is None and self._delay is not None

    async def prepare(self) -> None:
        """Learn ZooKeeper's time, and make consumers search for such messages if this is the first one."""
        if not self._time_known:
            await self._runtime.learn_time()
        await self._state.ensure_lane(self._priority, scheduled=self._scheduled)

    def path(self, prefix: str) -> str:
        """See `Place`. The due time is computed once, so every attempt uses the same one."""
        if self._due is None and self._delay is not None:
            # Never too early, even if the server's clock is ahead of our estimate.
            self._due = min(LAST_MOMENT, self._runtime.server_clock.time_at(self._from + self._delay))
        if self._due is None or self._is_past(self._due):
            lane = self._state.snapshot.lanes.of_priority(self._priority, self.key)
            return ItemRef(lane, unscheduled_prefix(prefix)).path
        return ItemRef(later_of(self._due), scheduled_prefix(prefix, self._due, self._priority)).path

    @property
    def _scheduled(self) -> bool:
        return self._delay is not None if self._due is None else not self._is_past(self._due)

    def _is_past(self, due: int) -> bool:
        clock = self._runtime.server_clock
        self._past = self._past or (clock.sampled and due <= clock.now())
        return self._past


def placement_plan(
    handle: QueueHandle[Runtime], priority: int, due: int | None, delay: float | None = None
) -> PutPlan | None:
    """Return the plan of a put by its priority and due time, or delay; None: the put is plain."""
    if not priority and delay is None and due is None:
        return None
    return PutPlan(place=DelayedPlace(handle, priority, due=due, delay=delay))
