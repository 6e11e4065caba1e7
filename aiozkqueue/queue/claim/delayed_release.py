"""Failed claims whose locks this session keeps until the retry delay is over, and then releases.

This is used for items of another program: the other consumers of such a queue must respect the delay, and locks are all
they understand. It is also used where ZooKeeper refuses the timed lock. The lock stays the session's ephemeral lock, so
the item is free at once if this process dies.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.queue.runtime.clock import Clock, Timer
    from aiozkqueue.queue.state.claim import Claim


class DelayedReleases:
    """The delayed releases of one dispatcher. ``give_back`` is called with each claim whose delay is over."""

    def __init__(self, clock: Clock, give_back: Callable[[Claim], None]) -> None:
        self._clock = clock
        self._give_back = give_back
        self._timers: dict[Claim, Timer] = {}

    def keep(self, claim: Claim, delay: float) -> None:
        """Hold a claim for another ``delay`` seconds."""
        claim.handed = claim.recorded = False
        self._timers[claim] = self._clock.call_later(delay, partial(self._due, claim))

    def close(self) -> None:
        """Cancel all releases: the locks end with the session."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _due(self, claim: Claim) -> None:
        del self._timers[claim]
        self._give_back(claim)
