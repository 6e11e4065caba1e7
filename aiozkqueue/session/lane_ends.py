"""The ends of lanes: when the counter of a lane nears its end, the session opens the lane's next generation."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import QueueError
from aiozkqueue.zookeeper import ZooKeeperError

if TYPE_CHECKING:
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.runtime.clock import Clock
    from aiozkqueue.runtime.tasks import TaskOwner

log: Final = logging.getLogger(__name__)

#: Seconds until the next attempt to open a generation that could not be opened.
ADVANCE_AGAIN: Final = 60.0


class LaneEnds:
    """Opens one generation at a time for each queue of a session."""

    def __init__(self, clock: Clock, tasks: TaskOwner) -> None:
        self._clock = clock
        self._tasks = tasks
        self._advancing: set[str] = set()  # queues
        self._again: dict[str, float] = {}  # by queue: when to try again to open the next generation

    def note(self, state: QueueState, path: str) -> None:
        """Record that an item's path shows that its lane's counter is near its end."""
        again = self._again.get(state.name)
        if state.name not in self._advancing and (again is None or self._clock.monotonic() >= again):
            self._advancing.add(state.name)
            self._tasks.spawn(self._advance, state, path, name=f"next lane of {state.name}")

    async def _advance(self, state: QueueState, path: str) -> None:
        try:
            await state.next_generation(path)
        except (QueueError, ZooKeeperError) as error:
            # Puts still succeed until the counter ends, 2**30 items later, and each of them would try again.
            self._again[state.name] = self._clock.monotonic() + ADVANCE_AGAIN
            log.warning("queue %s: %s", state.name, error, extra={"queue": state.name})
        finally:
            self._advancing.discard(state.name)
