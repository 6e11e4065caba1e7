"""Where time comes from: the injected clock, and ZooKeeper's time as seen through it."""

from __future__ import annotations

import asyncio
import time
from math import ceil
from typing import TYPE_CHECKING, Protocol

from aiozkqueue.zookeeper import ConnectionLossError, SessionExpiredError, SetData, Stat

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.zookeeper import ZooKeeper

#: Samples older than twice this many seconds no longer bound the server's time: its clock may have been set back.
SAMPLE_LIFETIME = 30.0


class Timer(Protocol):
    """A callback that waits for its time."""

    def cancel(self) -> None:
        """Do not call back. Idempotent."""


class Clock:
    """The system's clocks. Give a subclass to `connect` to move time in tests."""

    def time(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    @property
    def moved(self) -> float:
        """By how many seconds it has been moved ahead of the system's; ZooKeeper's time is seen ahead by as many."""
        return 0.0

    def monotonic(self) -> float:
        """Return seconds that only grow, from an arbitrary start."""
        return time.monotonic()

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Call back on the running loop after ``delay`` seconds."""
        return asyncio.get_running_loop().call_later(delay, callback)

    def view(self, zookeeper: ZooKeeper) -> ZooKeeper:
        """Return what a session on this clock sees ZooKeeper through: a clock that is moved moves its stamps, too."""
        return zookeeper

    def stamped(self, moment: int) -> int:
        """Return what the server stamped (ms), of a stamp seen through `view`."""
        return moment


class _Bound:
    """The best of the recent samples of one kind: the greatest."""

    __slots__ = ("_previous", "_recent", "best")

    def __init__(self) -> None:
        self._recent: float | None = None
        self._previous: float | None = None
        self.best: float | None = None

    def turn(self) -> None:
        """A sample's lifetime has passed: those of the one before count no more."""
        self._previous, self._recent = self._recent, None

    def add(self, sample: float) -> None:
        """Take a sample."""
        if self._recent is None or sample > self._recent:
            self._recent = sample
        self.best = self._recent if self._previous is None else max(self._recent, self._previous)


class ServerClock:
    """ZooKeeper's time: never ahead of the server's, so that nothing is judged ended before it has.

    Every write of ours that tells its mtime is a sample: ``mtime - local time at its reply`` is at most the true
    offset, hence the greatest of the recent ones is the best lower bound; ``mtime - local time when it was sent`` is
    at least the true offset. A change of leader (the epoch in the upper half of the zxid) starts anew, since another
    machine's clock rules from then on.
    """

    def __init__(self, clock: Clock, zookeeper: ZooKeeper) -> None:
        self._clock = clock
        self._zookeeper = zookeeper
        self._epoch = -1
        self._since = 0.0
        self._least = _Bound()
        self._most = _Bound()  # of negative offsets

    def local(self) -> float:
        """Return the local time that samples are measured by, milliseconds from an arbitrary start."""
        clock = self._clock
        return (clock.monotonic() - clock.moved) * 1000

    def observe(self, mtime: int, sent: float | None = None) -> None:
        """Take the mtime (ms) of an own write as a sample; call it when the reply is there.

        ``sent`` is what `local` gave before it was sent, when that is known.
        """
        mtime = self._clock.stamped(mtime)
        local = self.local()
        epoch = self._zookeeper.last_zxid >> 32
        if epoch != self._epoch:
            self._epoch, self._least, self._most, self._since = epoch, _Bound(), _Bound(), local
        elif local - self._since > SAMPLE_LIFETIME * 1000:
            self._since = local
            self._least.turn()
            self._most.turn()
        self._least.add(mtime - local)
        if sent is not None:
            self._most.add(sent - mtime - 1)  # an mtime is cut to the millisecond

    @property
    def sampled(self) -> bool:
        """Whether the current leader's time is known; until then `now` falls back on the local clock."""
        return self._least.best is not None and self._zookeeper.last_zxid >> 32 == self._epoch

    @property
    def bounded(self) -> bool:
        """Whether it is known from above, too: until then `then` falls back on the local clock."""
        return self._most.best is not None and self._zookeeper.last_zxid >> 32 == self._epoch

    def now(self) -> int:
        """Return the server's time, milliseconds since the epoch, at or before the true one."""
        if self._least.best is None:
            return int(self._clock.time() * 1000)
        return int(self._clock.monotonic() * 1000 + self._least.best)

    def then(self, moment: float) -> int:
        """Return the server's time at a moment of the clock's `Clock.monotonic`, at or after the true one."""
        if self._most.best is None:
            return ceil((self._clock.time() + moment - self._clock.monotonic()) * 1000)
        return ceil(moment * 1000 - self._most.best)

    async def learned(self, path: str) -> int:
        """Return the server's time, learnt by a write of nothing to a znode when it is not known.

        While disconnected it waits. Raises: MultiError of the zookeeper package.
        """
        while not self.sampled:
            sent = self.local()
            try:
                (stat,) = await self._zookeeper.multi([SetData(path, b"")])
            except (ConnectionLossError, SessionExpiredError):
                await self._zookeeper.wait_connected()
                continue
            assert isinstance(stat, Stat)  # noqa: S101 - for the type checker: what setting data gives
            self.observe(stat.mtime, sent)
        return self.now()
