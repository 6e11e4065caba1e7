"""Tasks kept for more than one piece of work: to wake one costs a fraction of what to start one does."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

#: Seconds that a task rests before it ends, at the least; at the most twice as long.
RESTS: Final = 1.0


class TaskPool(Generic[T]):
    """Does the same for each job that it is given, at once, each in a task of its own; those that are done rest.

    One that a job fails ends with that error; one that nothing is found for ends a moment later.
    """

    def __init__(self, work: Callable[[T], Coroutine[object, object, None]]) -> None:
        self._work = work
        self._resting: list[asyncio.Future[bool]] = []
        self._rested: list[asyncio.Future[bool]] = []
        """Those that did at the last look."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.jobs: deque[T] = deque()
        """Those that no task has begun with yet."""

    def submit(self, job: T) -> bool:
        """Take on a job; False: all are busy, and one more is to `work`."""
        self.jobs.append(job)
        while self._resting:
            member = self._resting.pop()
            if not member.done():  # else it has been cancelled
                member.set_result(True)
                return True
        return False

    async def work(self) -> None:
        """Do one job after the other until cancelled, or not needed any more."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        while True:
            while not self.jobs:
                if self._closed:
                    return
                roused: asyncio.Future[bool] = loop.create_future()
                self._resting.append(roused)
                if self._timer is None:
                    self._timer = loop.call_later(RESTS, self._look, loop)
                if not await roused:
                    return
            await self._work(self.jobs.popleft())
            while task is not None and task.cancelling():
                task.uncancel()  # the next job is not to take for its own what this one has left, as a TaskGroup may

    def close(self) -> list[T]:
        """Let those go that rest, and the others when they are done; returns the jobs that nobody has begun with."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._dismiss(self._resting)
        unbegun = list(self.jobs)
        self.jobs.clear()
        return unbegun

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let those go that rest since the last look; who comes to rest last is roused first."""
        self._dismiss(self._rested)
        self._resting = [member for member in self._resting if not member.done()]
        self._rested = self._resting[:]
        self._timer = loop.call_later(RESTS, self._look, loop) if self._resting else None

    @staticmethod
    def _dismiss(members: list[asyncio.Future[bool]]) -> None:
        for member in members:
            if not member.done():
                member.set_result(False)
