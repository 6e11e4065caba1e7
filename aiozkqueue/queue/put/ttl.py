"""The lifetime of a message: its expiry, and the action at its expiry.

The time of expiry is part of the item's name (``-e<ms>``, ZooKeeper's time). It is fixed when the put is sent, and
counts from the due time or from the put. It is checked when the message is claimed, against ZooKeeper's time at the
creation of the lock, and again at delivery. The janitor removes expired messages that no session claims
(`aiozkqueue.operations.ttl`).
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from aiozkqueue.layout import LAST_MOMENT, End, ItemName, ItemRef
from aiozkqueue.moments import milliseconds_in, moment_at
from aiozkqueue.queue.commit.dispositions import Disposition
from aiozkqueue.queue.commit.put_plan import PutPlan
from aiozkqueue.runtime.clock import TRUSTED
from aiozkqueue.zookeeper import MultiError

if TYPE_CHECKING:
    from aiozkqueue.layout import StoredConfig
    from aiozkqueue.queue.commit.put_plan import Place
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.runtime.clock import ServerClock


EXPIRED = Disposition("remove", outcome=End.EXPIRED)


class TtlPlace:
    """The place of an item whose name holds its time of expiry: within another place, or in the next lane."""

    __slots__ = ("_clock", "_end", "_seconds", "_state", "within")

    def __init__(self, state: QueueState, clock: ServerClock, seconds: float, within: Place | None) -> None:
        self._state = state
        self._clock = clock
        self._seconds = seconds
        self.within: Place | None = within
        """The place of the item; None: the next lane in rotation."""
        self._end: int | None = None

    @property
    def ready(self) -> bool:
        """Whether ZooKeeper's time and the place are known."""
        return self._end_known and (self.within is None or self.within.ready)

    @property
    def _end_known(self) -> bool:
        return self._seconds == math.inf or self._end is not None or self._clock.sampled_within(TRUSTED)

    @property
    def needs_time(self) -> bool:
        """See `Place`."""
        counts_from_now = self._seconds != math.inf and self._end is None
        return counts_from_now or (self.within is not None and self.within.needs_time)

    async def prepare(self) -> None:
        """Learn ZooKeeper's time, and prepare the place."""
        while not self.ready:  # the queue may change in the meantime
            if self.within is not None and not self.within.ready:
                await self.within.prepare()
            if self._end_known:
                continue
            with suppress(MultiError):
                await self._clock.learned(self._state.paths.due)
            if not self._end_known:  # the queue or a part of it has been deleted
                self._state.invalidate()
                await self._state.open_or_create()

    def path(self, prefix: str) -> str:
        """Return the path of the item, with its time of expiry in the name."""
        path = (
            ItemRef(self._state.snapshot.lanes.next(), prefix).path if self.within is None else self.within.path(prefix)
        )
        if self._seconds == math.inf:
            return path
        item = ItemRef.parse(path)
        if self._end is None:  # later attempts use the same time
            self._end = _end(item.name, self._seconds, self._clock.now())
        return item.with_field(f"e{self._end}").path


def with_lifetime(plan: PutPlan | None, state: QueueState, clock: ServerClock, seconds: float) -> PutPlan:
    """Return the plan with a lifetime; ``math.inf``: the message never expires, even if the queue has a lifetime."""
    if plan is None:
        return PutPlan(place=TtlPlace(state, clock, seconds, None))
    return replace(plan, place=TtlPlace(state, clock, seconds, plan.place))


def at_its_end(config: StoredConfig, end: int) -> Disposition:
    """Return the disposition of an expired message."""
    if config.expired != "dead-letter":
        return EXPIRED
    return Disposition("dead", reason=f"it expired at {moment_at(end):%Y-%m-%dT%H:%M:%S.%fZ}")


def _end(prefix: str, seconds: float, now: int) -> int:
    name = ItemName.parse(f"{prefix}0000000000")
    start = now if name is None or name.due is None else max(now, name.due)
    return min(start + max(1, milliseconds_in(seconds)), LAST_MOMENT)
