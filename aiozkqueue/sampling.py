"""Samples of queues over the last hour, taken by this process, for charts and for Prometheus.

A sample costs a few reads per queue every ten seconds, regardless of the number of messages. Sizes are the servers'
child counts. The numbers of puts and removals follow from their changes. Nothing is stored.

A queue that cannot be read does not affect the others: each is sampled on its own, within limits of time and lanes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from contextlib import suppress
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from aiozkqueue.errors import AccessDeniedError, PayloadError, QueueError, SessionClosedError
from aiozkqueue.operations.bundles import count_bundled, count_put_more
from aiozkqueue.operations.ended_locks import count_ended
from aiozkqueue.operations.oldest import Oldest, oldest_waiting
from aiozkqueue.operations.queue_names import listed_queues
from aiozkqueue.operations.refusals import Refusals
from aiozkqueue.operations.shown_time import shown_time
from aiozkqueue.operations.stats import (
    configuration,
    count_for,
    count_scheduled,
    count_staged,
    counted_folders,
    lanes_of,
    read_folders,
)
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import NoAuthError, ServerError, State, ZooKeeperError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from aiozkqueue.layout import StoredConfig
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.session.session import QueueSession
    from aiozkqueue.zookeeper import Stat

log: Final = logging.getLogger(__name__)

EVERY: Final = 10.0
KEPT: Final = 360
#: Maximum number of queues to sample, the first by name.
MOST_QUEUES: Final = 500
#: Maximum number of znodes of a queue that are listed for each sample, for the oldest message and for bundles.
LISTED: Final = 20_000
#: Maximum number of znodes of a deep queue, which are listed once a minute.
MOST_LISTED: Final = 100_000
#: Maximum seconds for the sample of one queue.
SAMPLE_TIMEOUT: Final = 3.0
#: Seconds after which a queue that took longer is tried again, and a deep queue is listed again.
RETRY: Final = 60.0
#: Maximum number of lanes, and hours of scheduled messages, of a queue to sample.
MOST_FOLDERS: Final = 10_000


class Sample(NamedTuple):
    """One queue at one time. The numbers of messages have the same meaning as those of `QueueStats`."""

    at: float
    """Seconds since 1970."""
    size: int
    in_flight: int
    retrying: int
    scheduled: int
    dead: int
    consumers: int
    put: int
    """Messages ever put, as counted by the server; only differences are meaningful."""
    oldest: float | None
    """The time since which the oldest waiting message waits, in seconds since 1970 by ZooKeeper's clock; None if no
    message waits, or if it is unknown."""
    paused: bool
    max_size: int | None
    """The maximum number of messages; None: unlimited."""
    unreadable: Mapping[str, str] = MappingProxyType({})
    """The names of figures that leave out something that this user may not read, each with the reason."""
    ahead: float = 0.0
    """Seconds by which this machine's clock is ahead of ZooKeeper's; known if `oldest` is."""

    def age(self, now: float) -> float | None:
        """Return how long the oldest waiting message has waited at a time of this machine's clock, seconds."""
        return None if self.oldest is None else max(0.0, now - self.ahead - self.oldest)

    @property
    def delayed(self) -> int:
        """Messages that can be taken only later."""
        return self.retrying + self.scheduled

    @property
    def waiting(self) -> int:
        """Messages that can be taken now."""
        return max(0, self.size - self.in_flight - self.delayed)


class _Bundles(NamedTuple):
    """The bundles of a queue when they were last listed."""

    at: float
    average: float
    """The messages of bundles beyond one for each znode, for each znode of the queue."""
    in_flight: int
    refused: Sequence[AccessDeniedError]
    """The errors of records that this user may not read."""


class _Listed(NamedTuple):
    """A number that needed a listing."""

    at: float = float("-inf")
    took: float = 0.0
    """How long the listing took, seconds."""
    znodes: int = 0
    """The znodes that were listed, about."""
    number: int = 0


class _Search(NamedTuple):
    """The last search for the oldest waiting message."""

    at: float = float("-inf")
    found: Oldest | None = None
    refused: Sequence[AccessDeniedError] = ()
    """The errors of znodes that this user may not read."""
    changes: tuple[int, int] = (0, 0)
    """The messages ever put, and the locks, at that time: an older one may have been moved here or released since."""


class UnreadableError(QueueError):
    """A queue was not sampled: it takes too long, a server refuses a read, or its configuration does not decode."""


class Rates(NamedTuple):
    """Messages per second, over the last minute or the part of it that is known."""

    put: float
    removed: float


class Sampler:
    """Samples the existing queues of one session: all of them, or those that ``queues`` returns."""

    def __init__(self, session: QueueSession, queues: Callable[[], Sequence[str]] | None = None) -> None:
        self._session = session
        self._queues = queues
        self._history: dict[str, deque[Sample]] = {}
        self._latest: dict[str, Sample] = {}
        self._unreadable: dict[str, str] = {}
        self._partly: dict[str, str] = {}
        self._omitted: list[str] = []
        self._slow: dict[str, float] = {}
        self._listed: dict[tuple[str, str], _Listed] = {}
        self._oldest: dict[str, _Search] = {}
        self._bundles: dict[str, _Bundles] = {}
        self._numbers = count(1)  # of readings and deletions, in the order in which they began
        self._begun: dict[str, int] = {}  # the numbers of those that are known of each queue
        self._sampled_at = float("-inf")
        self._kept = float("-inf")
        self._sampling = asyncio.Lock()

    async def run(self) -> None:
        """Sample all queues repeatedly, until the session is closed. A reason why that fails is logged once."""
        logged = ""
        while True:
            try:
                await self.sample_all(0.0)
                logged = ""
            except SessionClosedError:  # it still settles its work, and then ends this task
                return
            except (QueueError, ZooKeeperError, TimeoutError) as error:
                # Without a connection, the session logs the outage.
                if core_of(self._session).zookeeper.state is State.CONNECTED and str(error) != logged:
                    logged = str(error)
                    log.warning("the queues could not be sampled: %s", logged)
            await asyncio.sleep(EVERY)

    async def sample_all(self, age: float) -> None:
        """Sample all queues, unless the last sample is younger than ``age`` seconds; unread queues go to `unreadable`.

        Raises: QueueError, ZooKeeperError; TimeoutError: ZooKeeper does not answer.
        """
        async with self._sampling:
            start = time.monotonic()
            if start - self._sampled_at < age:
                return
            await self._learn_time()
            first = next(self._numbers)
            known = await self._names()
            names = known[:MOST_QUEUES]
            samples: dict[str, Sample] = {}
            unreadable: dict[str, str] = {}
            begun: dict[str, int] = {}
            for name in names:
                begun[name] = next(self._numbers)
                try:
                    sample = await self._try(name)
                except UnreadableError as error:
                    unreadable[name] = str(error)
                else:
                    if sample is not None:
                        samples[name] = sample
            self._apply_changes(first, begun, samples, unreadable)
            partly = {name: reason for name, sample in samples.items() if (reason := _partly(name, sample)) is not None}
            for name in sorted({**unreadable, **partly}.keys() - {**self._unreadable, **self._partly}.keys()):
                log.warning("%s", {**unreadable, **partly}[name], extra={"queue": name})
            self._latest, self._unreadable, self._omitted = samples, unreadable, known[MOST_QUEUES:]
            self._partly = partly
            self._listed = {key: counted for key, counted in self._listed.items() if key[0] in samples}
            self._oldest = {name: oldest for name, oldest in self._oldest.items() if name in samples}
            self._bundles = {name: bundles for name, bundles in self._bundles.items() if name in samples}
            self._slow = {name: at for name, at in self._slow.items() if name in unreadable}
            self._sampled_at = time.monotonic()
            if start - self._kept < EVERY / 2:
                return
            self._kept = start
            self._history = {name: self._history.get(name, deque(maxlen=KEPT)) for name in names}
            for name, sample in self._latest.items():
                self._history[name].append(sample)

    async def sample(self, name: str) -> Sample | None:
        """Sample one queue now; return its latest sample, or None if it does not exist.

        Raises: UnreadableError; as `sample_all`.
        """
        begun = next(self._numbers)
        await self._learn_time()
        sample = await self._try(name)
        if begun < self._begun.get(name, 0):  # changed, deleted or sampled again meanwhile
            return self._latest.get(name, sample)
        self._begun[name] = begun
        if sample is None:
            self._latest.pop(name, None)
        else:
            self._latest[name] = sample
        return sample

    def forget(self, name: str) -> None:
        """Drop the last sample of a queue that was deleted."""
        self._latest.pop(name, None)
        self._begun[name] = next(self._numbers)

    @property
    def latest(self) -> dict[str, Sample]:
        """The last sample of each queue, by name."""
        return self._latest

    @property
    def sampled_at(self) -> float:
        """The time of the last samples, in seconds since 1970; 0: never."""
        return max(0.0, time.time() - (time.monotonic() - self._sampled_at))

    @property
    def unreadable(self) -> dict[str, str]:
        """The reasons why queues could not be read the last time, by name."""
        return self._unreadable

    @property
    def partly_unreadable(self) -> dict[str, str]:
        """The reasons why the last samples of queues leave something out, by name."""
        return self._partly

    @property
    def omitted(self) -> Sequence[str]:
        """The names of the queues beyond the first `MOST_QUEUES`, which are not sampled."""
        return self._omitted

    def history(self, name: str) -> Sequence[Sample]:
        """Return the samples of a queue, the oldest first."""
        return tuple(self._history.get(name, ()))

    def rates(self, name: str) -> Rates:
        """Return the current rates of puts and removals."""
        last = self._latest.get(name)
        earlier = [
            sample for sample in self.history(name) if last is not None and 0 < last.at - sample.at <= 6.5 * EVERY
        ]
        if last is None or not earlier:
            return Rates(0.0, 0.0)
        return rates_between(earlier[0], last)

    # -- inside

    async def _learn_time(self) -> None:
        """Learn ZooKeeper's time, if it is soon known: it needs a write, which must not use up the time of a queue."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SAMPLE_TIMEOUT):
                await shown_time(core_of(self._session))

    def _apply_changes(
        self, first: int, begun: Mapping[str, int], samples: dict[str, Sample], unreadable: dict[str, str]
    ) -> None:
        """Drop the samples of queues that were deleted meanwhile, and replace those that are out of date.

        ``first`` is the number of the first request of these samples, and ``begun`` has the number of each sample.
        """
        later = {name: number for name, number in self._begun.items() if number > first}
        for name, number in later.items():
            if name not in self._latest:
                samples.pop(name, None)
                unreadable.pop(name, None)
            elif name in samples and number > begun[name]:
                samples[name] = self._latest[name]
        self._begun = {name: max(number, later.get(name, 0)) for name, number in {**later, **begun}.items()}

    async def _names(self) -> list[str]:
        return await listed_queues(core_of(self._session)) if self._queues is None else sorted(self._queues())

    async def _try(self, name: str) -> Sample | None:
        """Return a sample of a queue; None if it does not exist.

        Raises: UnreadableError; as `sample_all` if ZooKeeper is unreachable.
        """
        if time.monotonic() - self._slow.get(name, float("-inf")) < RETRY:
            raise UnreadableError(self._unreadable.get(name, f"queue {name!r} took too long to read"))
        try:
            async with asyncio.timeout(SAMPLE_TIMEOUT):
                return await self._sample(name)
        except (NoAuthError, ServerError) as error:
            msg = f"queue {name!r} cannot be read: {error}"
            raise UnreadableError(msg) from error
        except (AccessDeniedError, PayloadError) as error:
            raise UnreadableError(str(error)) from error
        except TimeoutError as error:
            if core_of(self._session).zookeeper.state is not State.CONNECTED:
                raise
            self._slow[name] = time.monotonic()
            msg = f"queue {name!r} could not be read within {SAMPLE_TIMEOUT:g} s; it is read again after {RETRY:g} s"
            raise UnreadableError(msg) from error

    async def _sample(self, name: str) -> Sample | None:
        handle = core_of(self._session).handle(name)
        paths = handle.paths
        config = await configuration(handle)
        if config is None:
            return None
        stats: dict[str, Stat] = {}
        refusals, put, staged = Refusals(), 0, 0
        with refusals.of("size", "put") as refused:
            put += await read_folders(handle, config, stats, partial(_folders_of, unreadable=refused), refused)
        with refusals.of("put"):
            put += await count_put_more(handle)
        put += sum(stat.children_created for stat in stats.values())
        counts = {folder: stat.num_children for folder, stat in stats.items()}
        locks, due, dead, consumers = await asyncio.gather(
            *(count_for(handle, path, refusals, figures) for path, figures in counted_folders(paths)[:4])
        )
        ended = scheduled = 0
        with refusals.of("retrying"):
            ended = await self._list_for(name, "ended", due, partial(count_ended, handle)) if due else 0
        later = sum(number for folder, number in counts.items() if folder.startswith(f"{paths.later}/"))
        if later:
            with refusals.of("scheduled"):
                scheduled = await self._list_for(name, "scheduled", later, partial(count_scheduled, handle, counts))
        with refusals.of("in_flight"):
            staged = await count_staged(handle, config)
        more, in_bundles = 0, 0
        if config.bundled:
            with refusals.of("size", "in_flight") as refused:
                more, in_bundles = await self._count_bundled(handle, counts, refused)
        sample = Sample(
            at=time.time(),
            size=sum(counts.values()) + more,
            in_flight=max(0, locks - due - staged + in_bundles),
            retrying=max(0, due - ended),
            scheduled=min(scheduled, later),
            dead=dead,
            consumers=consumers,
            put=put,
            oldest=None,
            paused=bool(config.paused),
            max_size=config.max_size or None,
            unreadable=refusals.figures,
        )
        oldest: int | None = None
        with refusals.of("oldest") as refused:
            oldest = await self._find_oldest(handle, config, counts, sample, locks, refused=refused)
        if oldest is None:
            return sample
        now = await shown_time(handle.runtime)
        return sample._replace(oldest=oldest / 1000, ahead=time.time() - now / 1000)

    async def _count_bundled(
        self, handle: QueueHandle[Runtime], counts: Mapping[str, int], refused: list[AccessDeniedError]
    ) -> tuple[int, int]:
        """Return the messages of bundles beyond one for each znode: all, and those in flight.

        The bundles of a deep queue are listed once a minute. In between, the average of that time is used.
        """
        znodes = sum(counts.values())
        bundles = self._bundles.get(handle.name)
        deep = znodes > LISTED
        if not deep or (znodes <= MOST_LISTED and (bundles is None or time.monotonic() - bundles.at > RETRY)):
            unread: list[AccessDeniedError] = []
            found = await count_bundled(handle, counts, unread)
            bundles = _Bundles(time.monotonic(), sum(found.more.values()) / max(1, znodes), found.in_flight, unread)
            self._bundles[handle.name] = bundles
        if bundles is None:
            return 0, 0
        refused += bundles.refused
        return round(bundles.average * znodes), bundles.in_flight

    async def _list_for(
        self, name: str, what: str, znodes: int, count: Callable[[], Coroutine[object, object, int]]
    ) -> int:
        """Return a number that needs a listing of about this many znodes.

        The number is cached for twenty times as long as the listing would take now: not for long after a purge.
        """
        last = self._listed.get((name, what), _Listed())
        start = time.monotonic()
        if start < last.at + 20 * last.took * min(1.0, znodes / max(1, last.znodes)) - EVERY / 2:
            return last.number
        number = await count()
        now = time.monotonic()
        self._listed[name, what] = _Listed(now, now - start, znodes, number)
        return number

    async def _find_oldest(
        self,
        handle: QueueHandle[Runtime],
        config: StoredConfig | None,
        counts: Mapping[str, int],
        sample: Sample,
        locks: int,
        *,
        refused: list[AccessDeniedError],
    ) -> int | None:
        """Return since when the oldest waiting message waits, ms; None if no message waits, or if it is unknown.

        The last known one is searched for again if it is taken, or if an older one may have been released or moved
        here; in a deep queue only once a minute, if it is taken.
        """
        last = self._oldest.pop(handle.name, _Search())
        if not sample.waiting:
            return None
        znodes = sum(counts.values())
        taken = last.found is None or await self._is_taken(handle, last.found)
        if znodes <= LISTED:
            again = taken or locks > 0 or last.changes != (sample.put, locks)
        else:
            again = taken and znodes <= MOST_LISTED and time.monotonic() - last.at > RETRY
        if again:
            unread: list[AccessDeniedError] = []
            at, used = time.monotonic(), [folder for folder, number in counts.items() if number]
            last = _Search(at, await oldest_waiting(handle, config, used, unread), unread, (sample.put, locks))
        elif taken and time.monotonic() - last.at > RETRY:
            last = _Search(last.at)
        self._oldest[handle.name] = last
        refused += last.refused
        return None if last.found is None else last.found.since

    async def _is_taken(self, handle: QueueHandle[Runtime], oldest: Oldest) -> bool:
        try:
            item, lock = await asyncio.gather(*map(handle.zookeeper.exists, (oldest.path, oldest.lock)))
        except NoAuthError:  # another user has locked it, or protects it
            return True
        return item is None or lock is not None


class Counted(Protocol):
    """The figures of a queue from which rates follow."""

    @property
    def at(self) -> float:
        """Seconds since 1970."""
        ...

    @property
    def size(self) -> int:
        """All messages."""
        ...

    @property
    def put(self) -> int:
        """Messages ever put."""
        ...


def rates_between(earlier: Counted, later: Counted) -> Rates:
    """Return the messages put and removed per second between two samples."""
    seconds = max(later.at - earlier.at, 0.001)
    put = max(0, later.put - earlier.put)
    return Rates(put / seconds, max(0, put - (later.size - earlier.size)) / seconds)


async def _folders_of(
    handle: QueueHandle[Runtime], config: StoredConfig | None, unreadable: list[AccessDeniedError]
) -> list[str]:
    """Return the folders to read. Raises: UnreadableError: there are too many; as `lanes_of`."""
    folders = await lanes_of(handle, config, unreadable)
    if len(folders) > MOST_FOLDERS:
        msg = (
            f"queue {handle.name!r} has {len(folders):,} lanes and hours of scheduled messages, more than the "
            f"{MOST_FOLDERS:,} that are read; `aiozkqueue clean {handle.name}` removes hours that have passed"
        )
        raise UnreadableError(msg)
    return folders


def _partly(name: str, sample: Sample) -> str | None:
    """Return why a sample leaves something out; None if it does not."""
    if not sample.unreadable:
        return None
    figures, reason = ", ".join(sample.unreadable), next(iter(sample.unreadable.values()))
    return f"queue {name!r}: this user may not read everything for {figures}: {reason}"
