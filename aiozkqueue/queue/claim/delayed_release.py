"""Claims that have failed and are held until their delay is over, then given back.

So it is with another program's items: the peers of such a queue must respect the delay, and they know locks only. And
so it is where ZooKeeper refuses the timed lock. The lock stays the session's own, so that the item is free at once if
this process dies.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.queue.runtime.clock import Clock, Timer
    from aiozkqueue.queue.state.claim import Claim


class DelayedReleases:
    """Those that one dispenser holds; ``give_back`` is called with each that is due."""

    def __init__(self, clock: Clock, give_back: Callable[[Claim], None]) -> None:
        self._clock = clock
        self._give_back = give_back
        self._timers: dict[Claim, Timer] = {}

    def keep(self, claim: Claim, delay: float) -> None:
        """Hold a claim for ``delay`` seconds more."""
        claim.handed = claim.recorded = False
        self._timers[claim] = self._clock.call_later(delay, partial(self._due, claim))

    def close(self) -> None:
        """Give none back any more: their locks go with the session."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _due(self, claim: Claim) -> None:
        del self._timers[claim]
        self._give_back(claim)
