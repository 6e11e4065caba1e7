"""The time budget of a survey of queues, which reports the parts that it has left out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable

#: Default time limit of `Queue.stats` and `SessionAdmin.diagnose`, in seconds.
BUDGET: Final[float] = 30


class Budget:
    """A number of seconds, from now on."""

    def __init__(self, seconds: float) -> None:
        self._time = asyncio.get_running_loop().time
        self._end = self._time() + seconds

    @property
    def left(self) -> float:
        """The remaining seconds; 0 when the time is up."""
        return max(0.0, self._end - self._time())

    def share(self, parts: int) -> Budget:
        """Return the budget of the next of several parts: its equal share, or a quarter of the time if that is more.

        One slow part cannot use up the time of all others, and quick parts leave their time to the others.
        """
        return Budget(self.left * max(1 / max(1, parts), 0.25))

    async def allows(self, work: Awaitable[object]) -> bool:
        """Run this within the remaining time; return whether it completed. Otherwise it has been cancelled."""
        limit = asyncio.timeout(self.left)
        try:
            async with limit:
                await work
        except TimeoutError:
            if not limit.expired():
                raise
            return False
        return True
