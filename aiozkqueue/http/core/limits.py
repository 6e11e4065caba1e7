"""Limits of a request: the time to wait for ZooKeeper, and the share of the event loop for its body."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

#: Seconds of work on bodies after which other tasks get the event loop for the same time.
SLICE: Final = 0.005
#: The longest pause, seconds. No step takes as long, unless the whole process was stopped in it.
LONGEST_PAUSE: Final = 0.25


class RequestDeadline:
    """The deadline of one request. Its clock stops while the body is read.

    Args:
        seconds: the time limit, from now or from the end of the body.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.over: asyncio.Future[None] = self._loop.create_future()
        """A future that is done when the deadline has passed."""
        self._begin()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock during the block and restart it at the end."""
        self.end()
        try:
            yield
        finally:
            self._begin()

    def end(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        self._timer = self._loop.call_later(self._seconds, self._pass)

    def _pass(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


def attach(request: Request, deadline: RequestDeadline) -> None:
    """Attach the deadline to the request, for the readers of its body."""
    request.state.deadline = deadline


def of(request: Request) -> RequestDeadline:
    """Return the deadline of a request."""
    deadline: RequestDeadline = request.state.deadline
    return deadline


class LoopShare:
    """Allows work on one body at a time, for up to half of the event loop's time.

    A step of the work cannot be interrupted. Other tasks run between two steps. Without a pause, each of many hostile
    bodies would have one step in every turn of the loop, and `/ping` would wait for all of them.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._worked = 0.0  # seconds since the last pause
        self._begun = 0.0
        self._left = 0.0

    async def __aenter__(self) -> Self:
        await self._turn.acquire()
        self._begun = time.perf_counter()
        if self._begun - self._left > self._worked:
            self._worked = 0.0
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.pause()
        finally:
            self._left = time.perf_counter()
            self._turn.release()

    async def pause(self) -> None:
        """Leave the event loop to other tasks for the duration of the work, if it was long enough to matter."""
        now = time.perf_counter()
        self._worked += now - self._begun
        if self._worked >= SLICE:
            worked, self._worked = self._worked, 0.0
            await asyncio.sleep(min(worked, LONGEST_PAUSE))
            now = time.perf_counter()
        self._begun = now
