"""Time: the injected clock, ZooKeeper's time estimated with it, and timers that many deadlines share."""

from __future__ import annotations

import asyncio
import time
from bisect import insort
from functools import partial
from math import ceil, inf
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import anyio

from aiozkqueue.zookeeper import Create, Delete, MultiError, NoNodeError, SetData, Stat, until_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from aiozkqueue.zookeeper import ZooKeeper

#: Seconds. Samples older than twice this no longer bound the server's time, since its clock may have been set.
SAMPLE_LIFETIME = 30.0
TRUSTED: Final = 2 * SAMPLE_LIFETIME
"""Seconds after its last sample for which the measured time decides whether something is due."""
#: Seconds between the progress of the date and that of monotonic time after which the machine counts as suspended.
SUSPENDED: Final = 1.0
#: The name of a znode that exists only within a multi, which it dates.
PROBE: Final = "time"
#: Seconds for which a sample suffices for display, and until the time is asked for again if a caller did not wait.
SHOWN, RETRY = 600.0, 10.0
#: Seconds for which callers that show the time wait for a sample that another one has begun.
SHARED_WAIT: Final = 1.0
#: Entries that may accumulate, in addition to those still waiting, before finished ones are removed.
SLACK: Final = 64


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
        self._showing = asyncio.Lock()
        self._show_again = -inf

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
        """Return the context of samples: the leader's epoch, and the session, which ends while a machine is paused."""
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
        """Return the server's time for display: like `now`, but including suspensions, according to this date.

        It may be ahead of the true time if the date was set.
        """
        slept = 0.0 if self._least.best is None else self._date_lead() - self._lead
        return self.now() + int(slept * 1000)

    async def shown(self, folder: str) -> int:
        """Return the server's time for display, as `estimate`; if the last sample is older than ten minutes, take one.

        A multi creates, writes and removes a znode in ``folder``, so nothing is left. After a refusal, as for a user
        who may only read, the next multi is sent a minute later; after a caller that does not wait, ten seconds later.
        Wait while disconnected. If the server is slow, only one caller waits for its answer: the others get the last
        known time.
        """
        left = self._show_again - RETRY + SHARED_WAIT - self._clock.monotonic()
        with anyio.move_on_after(max(0.0, left) if self._showing.locked() else None) as waiting:
            await self._showing.acquire()
        if waiting.cancelled_caught:
            return self.estimate()
        try:
            while not self.sampled_within(SHOWN) and self._clock.monotonic() >= self._show_again:
                self._show_again = self._clock.monotonic() + RETRY
                try:
                    await until_answered(self._zookeeper, partial(self._sample_in, folder))
                    self._show_again = -inf
                except MultiError:
                    self._show_again = self._clock.monotonic() + TRUSTED
        finally:
            self._showing.release()
        return self.estimate()

    async def _sample_in(self, folder: str) -> None:
        path, sent = f"{folder}/{PROBE}", self.local()
        _, stat, _ = await self._zookeeper.multi([Create(path), SetData(path, b""), Delete(path)])
        assert isinstance(stat, Stat)  # noqa: S101 - for the type checker: the result of SetData
        self.observe(stat.mtime, sent)

    def time_at(self, moment: float) -> int:
        """Return the server's time at a moment of `Clock.monotonic`, at or after its true value."""
        if self._most.best is None:
            return ceil((self._clock.time() + moment - self._clock.monotonic()) * 1000)
        return ceil(moment * 1000 - self._most.best)

    def latest(self) -> int:
        """Return the server's time now, at or after its true value."""
        return self.time_at(self._clock.monotonic())

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


class Expiring(Protocol):
    """An entry that may finish before its deadline."""

    @property
    def due(self) -> float:
        """The deadline, on the clock of `Clock.monotonic`."""
        ...

    @property
    def over(self) -> bool:
        """Whether the entry has finished."""
        ...


E = TypeVar("E", bound=Expiring)


_due_of = attrgetter("due")


class SharedTimer(Generic[E]):
    """Calls ``expire`` with each entry that has not finished at its deadline.

    When the timer fires, ``newcomers`` returns the entries added since the previous call. Most of them have finished
    by then: an entry that finishes in time costs only a comparison with `due`.
    """

    def __init__(self, clock: Clock, expire: Callable[[E], None], newcomers: Callable[[], Iterable[E]]) -> None:
        self._clock = clock
        self._expire = expire
        self._newcomers = newcomers
        self._entries: list[E] = []  # those unfinished when the timer last fired, by deadline
        self._prune_limit = SLACK
        self._timer: Timer | None = None
        self.due: float = inf
        """When the timer fires. A new entry with an earlier deadline must call `fire_by`."""

    def fire_by(self, due: float) -> None:
        """Move the timer to a deadline earlier than all others."""
        if self._timer is not None:
            self._timer.cancel()
        self.due = due
        self._timer = self._clock.call_later(due - self._clock.monotonic(), self._on_timer)

    def __len__(self) -> int:
        """Return the number of entries kept."""
        return len(self._entries)

    def close(self) -> None:
        """Discard all entries."""
        self._entries.clear()
        self._stop()

    def _stop(self) -> None:
        self.due = inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._stop()
        now = self._clock.monotonic()
        for entry in self._newcomers():
            self._add(entry)
        entries = self._entries
        count = 0
        while count < len(entries) and (entries[count].over or entries[count].due <= now):
            count += 1
        due, self._entries = entries[:count], entries[count:]
        for entry in due:
            if not entry.over:
                self._expire(entry)
        if self._entries and self._entries[0].due < self.due:
            self.fire_by(self._entries[0].due)

    def _add(self, entry: E) -> None:
        entries = self._entries
        if not entries or entry.due >= entries[-1].due:  # the usual case: later entries wait equally long
            entries.append(entry)
        else:
            insort(entries, entry, key=_due_of)
        if len(entries) > self._prune_limit:
            self._entries = [entry for entry in entries if not entry.over]
            self._prune_limit = 2 * len(self._entries) + SLACK


K = TypeVar("K", bound="Hashable")


class EqualDeadlines(Generic[K]):
    """Calls ``expire`` with each entry that has not been removed ``seconds`` after it was added.

    All entries wait equally long, so they expire in the order in which they were added, and an entry that is removed
    in time costs two changes of a dictionary.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, expire: Callable[[K], object]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._expire = expire
        self._entries: dict[K, float] = {}
        self._armed = False

    def add(self, entry: K) -> None:
        """Add an entry."""
        self._entries[entry] = self._loop.time() + self._seconds
        if not self._armed:
            self._fire_in(self._seconds)

    def remove(self, entry: K) -> None:
        """Remove an entry, if it has not expired."""
        self._entries.pop(entry, None)

    def _fire_in(self, seconds: float) -> None:
        self._armed = True
        self._loop.call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._armed = False
        now = self._loop.time()
        while self._entries:
            entry, due = next(iter(self._entries.items()))
            if due > now:
                self._fire_in(due - now)
                return
            del self._entries[entry]
            self._expire(entry)
