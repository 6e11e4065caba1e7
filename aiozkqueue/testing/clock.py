"""A clock for tests that runs like the system clock and can be moved ahead, which wakes its sleepers.

``aiozkqueue.connect(hosts, clock=TestClock())`` works with a real server. A session on it sees ZooKeeper's time as far
ahead as the clock has been moved: scheduled messages come due, and backoffs, leases and TTLs end. The session sees each
of the server's timestamps as far ahead as the clock was when the timestamp was made, so a message that is put after a
move is dated after the move. The ZooKeeper session and its timeout belong to the server and do not follow this clock.
Sessions that share a clock move together.
"""

from __future__ import annotations

import asyncio
import time
from math import floor, inf
from typing import TYPE_CHECKING, cast

from aiozkqueue.arguments import seconds
from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.layout import LAST_MOMENT
from aiozkqueue.runtime.clock import Clock

from .moved import MovedZooKeeper

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from aiozkqueue.zookeeper import ZooKeeper


class TestClock(Clock):
    """The system's time plus the total of all moves."""

    __test__ = False  # pytest would collect it as a test because of its name

    def __init__(self) -> None:
        self._moved = 0.0
        self._moves: list[tuple[int, int]] = []  # the last timestamp before each move, and the lead since then, ms
        self._newest = 0  # the latest timestamp seen, ms
        self._lead = -inf  # the lower bound of ZooKeeper's lead over the unmoved time, ms
        self._timers: dict[TestTimer, None] = {}

    @property
    def moved(self) -> float:
        """The number of seconds by which the clock has been moved ahead."""
        return self._moved

    def time(self) -> float:
        """Return the seconds since the epoch."""
        return time.time() + self._moved

    def monotonic(self) -> float:
        """Return monotonic seconds from an arbitrary start."""
        return time.monotonic() + self._moved

    def call_later(self, delay: float, callback: Callable[[], object]) -> TestTimer:
        """Call back on the running loop after ``delay`` seconds, or when the clock is moved past that time."""
        return TestTimer(self._timers, self.monotonic() + delay, delay, callback)

    def advance(self, by: float | timedelta) -> None:
        """Move the clock ahead by this many seconds and wake due sleepers in order. Call it on the sessions' loop only.

        The call takes a millisecond so that the server's later timestamps differ from its earlier ones.

        Raises:
            InvalidOptionError: ``by`` is not a number of seconds, or negative (sessions rely on monotonic time), or
                would move the clock beyond the latest time that messages can have.
        """
        ahead = seconds(by, "by", endless=False)
        if ahead is None or (self.time() + ahead) * 1000 > LAST_MOMENT:
            msg = f"by={by!r}: the clock would be beyond the year 9999"
            raise InvalidOptionError(msg)
        # Timestamps seen so far are before the move, and so are other clients' writes up to about now.
        last = floor(self._unmoved() + self._lead) if self._lead > -inf else floor((self.time() - self._moved) * 1000)
        self._moved += ahead
        self._moves.append((max(last, self._newest), floor(self._moved * 1000)))
        _spend_a_millisecond()
        now = self.monotonic()
        for timer in sorted(self._timers, key=lambda pending: pending.at):
            timer.move(timer.at - now)

    def view(self, zookeeper: ZooKeeper) -> ZooKeeper:
        """Return a client that shows the server's timestamps as far ahead as this clock was when they were made."""
        return cast("ZooKeeper", MovedZooKeeper(zookeeper, self._seen))

    def stamped(self, moment: int) -> int:
        """Return the server's original timestamp for one that a session on this clock has seen."""
        for last, ahead in reversed(self._moves):
            if moment - ahead > last:
                return moment - ahead
        return moment

    def _seen(self, stamp: int) -> int:
        self._lead = max(self._lead, stamp - self._unmoved())
        self._newest = max(self._newest, stamp)
        for last, ahead in reversed(self._moves):
            if stamp > last:
                return stamp + ahead
        return stamp

    def _unmoved(self) -> float:
        """Return the time without the moves, in ms from an arbitrary start."""
        return (self.monotonic() - self._moved) * 1000


def _spend_a_millisecond() -> None:
    """Wait without sleeping, because a sleep gives up the processor for longer."""
    end = time.perf_counter() + 0.0011
    while time.perf_counter() < end:
        pass


class TestTimer:
    """A callback that waits for its due time."""

    __test__ = False

    def __init__(self, waiting: dict[TestTimer, None], at: float, delay: float, callback: Callable[[], object]) -> None:
        self.at = at
        self._waiting = waiting
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle = self._loop.call_later(delay, self._fire)
        waiting[self] = None

    def cancel(self) -> None:
        """Cancel the callback. Idempotent."""
        self._handle.cancel()
        self._waiting.pop(self, None)

    def move(self, left: float) -> None:
        """Wait for this many seconds from now instead; call back at once if no time is left."""
        self._handle.cancel()
        if left > 0:
            self._handle = self._loop.call_later(left, self._fire)
        else:
            self._waiting.pop(self, None)
            self._handle = self._loop.call_soon(self._fire)

    def _fire(self) -> None:
        self._waiting.pop(self, None)
        self._callback()
