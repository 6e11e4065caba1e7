"""Tasks kept for more than one piece of work: to wake one costs a fraction of what to start one does."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


class Crew(Generic[T]):
    """Does the same for each job that it is given, at once, each in a task of its own; those that are done rest.

    There are as many tasks as there have ever been jobs at the same time; they end when they are cancelled. One that a
    job fails ends with that error.
    """

    def __init__(self, work: Callable[[T], Coroutine[object, object, None]]) -> None:
        self._work = work
        self._resting: list[asyncio.Future[None]] = []
        self.jobs: deque[T] = deque()
        """Those that no task has begun with yet."""

    def rouse(self, job: T) -> bool:
        """Take on a job; False: all are busy, and one more is to `work`."""
        self.jobs.append(job)
        while self._resting:
            member = self._resting.pop()
            if not member.done():  # else it has been cancelled
                member.set_result(None)
                return True
        return False

    async def work(self) -> None:
        """Do one job after the other until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            while not self.jobs:
                roused: asyncio.Future[None] = loop.create_future()
                self._resting.append(roused)
                await roused
            await self._work(self.jobs.popleft())
