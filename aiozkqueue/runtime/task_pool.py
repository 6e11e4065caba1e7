"""A pool of reusable tasks. Waking an idle task costs a fraction of starting a new one."""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import copy_context
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context

T = TypeVar("T")

#: Minimum seconds that a task stays idle before it ends; the maximum is twice this.
RESTS: Final = 1.0


class TaskPool(Generic[T]):
    """Runs the same function for each submitted job, immediately and in a separate task; finished tasks become idle.

    A task whose job raises ends with that error. A task ends after a job that has changed a context variable: no job
    gets a value of another. An idle task ends after a short time without a job.
    """

    def __init__(self, work: Callable[[T], Coroutine[object, object, None]]) -> None:
        self._work = work
        self._idle: list[asyncio.Future[bool]] = []
        self._idle_before: list[asyncio.Future[bool]] = []
        """The tasks that were idle at the previous `_trim`."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.jobs: deque[T] = deque()
        """The jobs that no task has started yet."""

    def submit(self, job: T) -> bool:
        """Add a job. Return False if no task is idle: the caller must start another `work`."""
        self.jobs.append(job)
        while self._idle:
            member = self._idle.pop()
            if not member.done():  # otherwise the task has been cancelled
                member.set_result(True)
                return True
        return False

    async def work(self) -> None:
        """Run jobs one after another until cancelled, idle for too long, or in a context that a job has changed."""
        loop, task, context = asyncio.get_running_loop(), asyncio.current_task(), copy_context()
        while True:
            while not self.jobs:
                if self._closed:
                    return
                woken: asyncio.Future[bool] = loop.create_future()
                self._idle.append(woken)
                if self._timer is None:
                    self._timer = loop.call_later(RESTS, self._trim, loop)
                if not await woken:
                    return
            await self._work(self.jobs.popleft())
            while task is not None and task.cancelling():
                task.uncancel()  # a job (a TaskGroup in it) may leave a request that must not cancel the next
            if not _is_unchanged(context):
                return  # each job that has not started has a separate task

    def close(self) -> list[T]:
        """End idle tasks now and busy ones after their job. Return the jobs that have not been started."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._dismiss(self._idle)
        unbegun = list(self.jobs)
        self.jobs.clear()
        return unbegun

    def _trim(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the tasks that have been idle since the previous call; the most recently idle task is woken first."""
        self._dismiss(self._idle_before)
        self._idle = [member for member in self._idle if not member.done()]
        self._idle_before = self._idle[:]
        self._timer = loop.call_later(RESTS, self._trim, loop) if self._idle else None

    @staticmethod
    def _dismiss(members: list[asyncio.Future[bool]]) -> None:
        for member in members:
            if not member.done():
                member.set_result(False)


def _is_unchanged(context: Context) -> bool:
    """Return whether the variables of the current context have the same values as in this one."""
    try:
        return copy_context() == context
    except Exception:  # noqa: BLE001 - it compares values of the program
        return False
