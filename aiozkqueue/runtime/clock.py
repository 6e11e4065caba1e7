"""Sources of time: the injected clock, and ZooKeeper's time estimated with it."""

from __future__ import annotations

import asyncio
import time
from math import ceil, inf
from typing import TYPE_CHECKING, Final, Protocol

from aiozkqueue.zookeeper import MultiError, NoNodeError, SetData, Stat, until_answered

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.zookeeper import ZooKeeper

#: Seconds. Samples older than twice this no longer bound the server's time, since its clock may have been set.
SAMPLE_LIFETIME = 30.0
TRUSTED: Final = 2 * SAMPLE_LIFETIME
"""Seconds after its last sample for which the measured time decides whether something is due."""
#: Seconds between the progress of the date and that of monotonic time after which the machine counts as suspended.
SUSPENDED: Final = 1.0


class Timer(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None:
        """Cancel the callback. Idempotent."""


class Clock:
    """The system's clocks. Pass a subclass to `connect` to control time in tests."""

    def time(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    @property
    def moved(self) -> float:
        """Seconds by which this clock is ahead of the system's. ZooKeeper's time appears ahead by the same amount."""
        return 0.0

    def monotonic(self) -> float:
        """Return seconds that never decrease, from an arbitrary start."""
        return time.monotonic()

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        """Schedule ``callback`` on the running loop after ``delay`` seconds."""
        return asyncio.get_running_loop().call_later(delay, callback)

    def view(self, zookeeper: ZooKeeper) -> ZooKeeper:
        """Return the view of ZooKeeper for sessions on this clock; a clock that is ahead shifts the server's stamps."""
        return zookeeper

    def stamped(self, moment: int) -> int:
        """Return the server's original timestamp (ms) for a timestamp read through `view`."""
        return moment


class _Bound:
    """The greatest of the recent samples of one kind."""

    __slots__ = ("_previous", "_recent", "best", "newest")

    def __init__(self) -> None:
        self._recent: float | None = None
        self._previous: float | None = None
        self.best: float | None = None
        self.newest: float = -inf
        """The local time of the last sample."""

    def turn(self) -> None:
        """Start a new sampling period, and drop the samples of the period before the last one."""
        self._previous, self._recent = self._recent, None

    def add(self, sample: float, local: float) -> None:
        """Add a sample that was taken at a local time."""
        self.newest = max(self.newest, local)
        if self._recent is None or sample > self._recent:
            self._recent = sample
        self.best = self._recent if self._previous is None else max(self._recent, self._previous)


class ServerClock:
    """A lower bound of ZooKeeper's time: no deadline is judged expired before it has expired on the server.

    Each of our writes that returns an mtime is a sample. ``mtime - local time at its reply`` is at most the true
    offset, so the greatest recent value is the best lower bound. ``mtime - local time when it was sent`` is at least
    the true offset. A change of leader (the epoch in the upper half of the zxid) discards all samples, because
    another machine's clock then provides the time. It closes all connections, so a new connection discards them too. So
    does a sample that the earlier ones exclude: the clock was set. Monotonic time stands still while this machine is
    suspended, so a suspension ends the samples too. It shows in the date, which continues. The date of a virtual
    machine may stand still too, so each new ZooKeeper session ends them.
    """

    def __init__(self, clock: Clock, zookeeper: ZooKeeper) -> None:
        self._clock = clock
        self._zookeeper = zookeeper
        self._era = (-1, -1)
        self._since = 0.0
        self._lead = self._date_lead()
        self._least = _Bound()
        self._most = _Bound()  # of negated offsets

    def local(self) -> float:
        """Return the local time that samples are relative to, in milliseconds from an arbitrary start."""
        clock = self._clock
        return (clock.monotonic() - clock.moved) * 1000

    def observe(self, mtime: int, sent: float | None = None) -> None:
        """Add the mtime (ms) of our own write as a sample. Call this when the reply arrives.

        ``sent`` is the result of `local` just before the write was sent, if known. The first sample after a suspension
        is no measurement, because its write may be from before: it is a lower bound, which may be far too low.
        """
        suspended, self._lead = self._suspended(), self._date_lead()
        mtime = self._clock.stamped(mtime)
        local = self.local()
        least, most = mtime - local, None if sent is None else sent - mtime - 1  # the server truncates an mtime to ms
        era = self._current_era()
        if suspended or era != self._era or local - self._since > TRUSTED * 1000 or self._excludes(least, most):
            self._era, self._least, self._most, self._since = era, _Bound(), _Bound(), local
        elif local - self._since > SAMPLE_LIFETIME * 1000:
            self._since += SAMPLE_LIFETIME * 1000
            self._least.turn()
            self._most.turn()
        taken = local if sent is None else sent  # the reply may be from after an outage
        self._least.add(least, taken)
        if suspended:
            self._least.newest = -inf
        elif most is not None:
            self._most.add(most, taken)

    def _excludes(self, least: float, most: float | None) -> bool:
        """Whether the recent samples contradict a new one: no offset is within the bounds of all."""
        set_ahead = self._most.best is not None and least > -self._most.best
        set_back = most is not None and self._least.best is not None and self._least.best > -most
        return set_ahead or set_back

    def reconnected(self) -> None:
        """Trust no earlier sample: another server may lead now, which no reply has shown yet."""
        self._era = (-1, -1)

    def _current_era(self) -> tuple[int, int]:
        """Return what samples depend on: the leader's epoch, and the session, which ends while a machine is paused."""
        return self._zookeeper.last_zxid >> 32, self._zookeeper.generation

    def _suspended(self) -> bool:
        """Whether this machine was suspended since the last sample, or its date was set."""
        return abs(self._date_lead() - self._lead) > SUSPENDED

    def _date_lead(self) -> float:
        return self._clock.time() - self._clock.monotonic()

    @property
    def sampled(self) -> bool:
        """Whether the current leader's time has a lower bound; otherwise `now` falls back to the local clock."""
        return self._least.best is not None and self._current_era() == self._era

    def sampled_within(self, seconds: float) -> bool:
        """Whether the lower bound of the current leader's time has a sample of the last ``seconds``."""
        return self.sampled and not self._suspended() and self.local() - self._least.newest <= seconds * 1000

    @property
    def bounded(self) -> bool:
        """Whether the current leader's time has a recent upper bound; otherwise `then` uses an older one."""
        recent = self.local() - self._most.newest <= TRUSTED * 1000
        return recent and not self._suspended() and self._current_era() == self._era

    def now(self) -> int:
        """Return the server's time in milliseconds since the epoch, at or before its true value."""
        if self._least.best is None:
            return int(self._clock.time() * 1000)
        return int(self._clock.monotonic() * 1000 + self._least.best)

    def estimate(self) -> int:
        """Return the server's time for what is shown: as `now`, but with the time of a suspension, by this date.

        It may be ahead of the true time if the date was set.
        """
        slept = 0.0 if self._least.best is None else self._date_lead() - self._lead
        return self.now() + int(slept * 1000)

    def then(self, moment: float) -> int:
        """Return the server's time at a moment of `Clock.monotonic`, at or after its true value."""
        if self._most.best is None:
            return ceil((self._clock.time() + moment - self._clock.monotonic()) * 1000)
        return ceil(moment * 1000 - self._most.best)

    async def learned(self, path: str) -> int:
        """Return the server's time; without a recent sample, write empty data to the znode at ``path`` to take one.

        Wait while disconnected. If the znode is missing, because its queue was deleted, the local clock must do.

        Raises: MultiError of the zookeeper package.
        """

        async def sample() -> None:
            sent = self.local()
            (stat,) = await self._zookeeper.multi([SetData(path, b"")])
            assert isinstance(stat, Stat)  # noqa: S101 - for the type checker: the result of SetData
            self.observe(stat.mtime, sent)

        try:
            while not self.sampled_within(TRUSTED):
                await until_answered(self._zookeeper, sample)
        except MultiError as error:
            if not isinstance(error.error, NoNodeError):
                raise
        return self.now()
