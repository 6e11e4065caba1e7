"""A clock for tests that runs like the system's and can be moved ahead: whatever sleeps on it till then wakes.

``aiozkqueue.connect(hosts, clock=TestClock())`` works with a real server. A session on it sees ZooKeeper's time as far
ahead as the clock has been moved: what is scheduled comes due, backoffs, leases and lives end. The ZooKeeper session
and its timeout are the server's, and follow no clock of ours. Sessions that share a clock move together.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from aiozkqueue.queue.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Callable


class TestClock(Clock):
    """The system's time, and as much more as it has been moved."""

    __test__ = False  # pytest takes it for a test, by its name

    def __init__(self) -> None:
        self._moved = 0.0
        self._timers: dict[TestTimer, None] = {}

    @property
    def moved(self) -> float:
        """By how many seconds it has been moved ahead."""
        return self._moved

    def time(self) -> float:
        """Return seconds since the epoch."""
        return time.time() + self._moved

    def monotonic(self) -> float:
        """Return seconds that only grow, from an arbitrary start."""
        return time.monotonic() + self._moved

    def call_later(self, delay: float, callback: Callable[[], object]) -> TestTimer:
        """Call back on the running loop after ``delay`` seconds, or when the clock is moved past that."""
        return TestTimer(self._timers, self.monotonic() + delay, delay, callback)

    def advance(self, by: float | timedelta) -> None:
        """Move the clock ahead by so many seconds: what sleeps till then wakes, in order. On the sessions' loop only.

        Raises:
            ValueError: ``by`` is negative: sessions rely on time that only grows.
        """
        seconds = by.total_seconds() if isinstance(by, timedelta) else float(by)
        if not seconds >= 0:
            msg = f"a clock cannot be moved by {by!r}: give 0 or more seconds"
            raise ValueError(msg)
        self._moved += seconds
        now = self.monotonic()
        for timer in sorted(self._timers, key=lambda one: one.at):
            timer.move(timer.at - now)


class TestTimer:
    """A callback that waits for its time."""

    __test__ = False

    def __init__(self, waiting: dict[TestTimer, None], at: float, delay: float, callback: Callable[[], object]) -> None:
        self.at = at
        self._waiting = waiting
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle = self._loop.call_later(delay, self._fire)
        waiting[self] = None

    def cancel(self) -> None:
        """Do not call back. Idempotent."""
        self._handle.cancel()
        self._waiting.pop(self, None)

    def move(self, left: float) -> None:
        """Wait for so many seconds from now instead; none are left: call back at once."""
        self._handle.cancel()
        if left > 0:
            self._handle = self._loop.call_later(left, self._fire)
        else:
            self._waiting.pop(self, None)
            self._handle = self._loop.call_soon(self._fire)

    def _fire(self) -> None:
        self._waiting.pop(self, None)
        self._callback()
