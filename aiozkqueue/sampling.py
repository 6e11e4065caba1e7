"""The figures of queues over the last hour, as this process has seen them: for charts and for Prometheus.

They cost a few reads a queue every ten seconds, whatever the queues hold: sizes are counts of children, and what was
put and removed is told by how often those have changed. Nothing of it is stored.

A queue that cannot be read costs the others nothing: each is looked at by itself, within bounds of time and of folders.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.errors import AccessDeniedError, InvalidNameError, PayloadError, QueueError
from aiozkqueue.layout import check_queue_name
from aiozkqueue.queue.admin.ended_locks import count_ended
from aiozkqueue.queue.admin.listing import first_items
from aiozkqueue.queue.admin.stats import configuration, count, count_scheduled, count_staged, lanes_of, put_into
from aiozkqueue.zookeeper import NoAuthError, State, ZooKeeperError, below

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from aiozkqueue.queue.session import QueueSession
    from aiozkqueue.zookeeper import Stat

log: Final = logging.getLogger(__name__)

EVERY: Final = 10.0
KEPT: Final = 360
#: Queues that are looked at, the first by name.
MOST_QUEUES: Final = 500
#: Messages up to which a queue is listed, once a look, to find its oldest when that one has gone.
LISTED: Final = 20_000
#: Seconds that the look at one queue may take.
PATIENCE: Final = 3.0
#: Seconds after which a queue that took longer is looked at again.
RETRY: Final = 60.0
#: Lanes, and hours of scheduled messages, beyond which a queue is not looked at.
MOST_FOLDERS: Final = 10_000
#: Folders that are asked for together.
PAGE: Final = 200


class Sample(NamedTuple):
    """One queue at one moment. The numbers of messages mean the same as those of `QueueStats`."""

    at: float
    """Seconds since 1970."""
    size: int
    in_flight: int
    retrying: int
    scheduled: int
    dead: int
    consumers: int
    put: int
    """Messages ever put, as far as the server counts: only differences mean something."""
    oldest: float | None
    """When the oldest was put, seconds since 1970; None when there is none, or it was not looked for."""

    @property
    def delayed(self) -> int:
        """Messages that can be taken at a later moment only."""
        return self.retrying + self.scheduled

    @property
    def waiting(self) -> int:
        """Messages that can be taken now."""
        return max(0, self.size - self.in_flight - self.delayed)


class UnreadableError(QueueError):
    """A queue was not looked at: it would take too long, or may not be read, or does not decode."""


class Rates(NamedTuple):
    """Messages a second, over a minute or what there is of it."""

    put: float
    removed: float


class Sampler:
    """Looks at the queues of one session: all that there are, or those that ``queues`` names."""

    def __init__(self, session: QueueSession, queues: Callable[[], Sequence[str]] | None = None) -> None:
        self._session = session
        self._queues = queues
        self._history: dict[str, deque[Sample]] = {}
        self._latest: dict[str, Sample] = {}
        self._unreadable: dict[str, str] = {}
        self._slow: dict[str, float] = {}
        self._listed: dict[tuple[str, str], tuple[float, int]] = {}
        self._oldest: dict[str, tuple[str, float]] = {}
        self._looked = float("-inf")
        self._kept = float("-inf")
        self._looking = asyncio.Lock()

    async def run(self) -> None:
        """Look again and again."""
        while True:
            try:
                await self.look(0.0)
            except (QueueError, ZooKeeperError, TimeoutError) as error:
                log.warning("the queues could not be looked at: %s", error)
            await asyncio.sleep(EVERY)

    async def look(self, age: float) -> None:
        """Look now, unless somebody has within so many seconds. A queue that cannot be read is in `unreadable`.

        Raises: QueueError, ZooKeeperError; TimeoutError: ZooKeeper does not answer.
        """
        async with self._looking:
            begun = time.monotonic()
            if begun - self._looked < age:
                return
            names = await self._names()
            samples: dict[str, Sample] = {}
            unreadable: dict[str, str] = {}
            for name in names:
                try:
                    samples[name] = await self._try(name)
                except UnreadableError as error:
                    unreadable[name] = str(error)
            for name in sorted(unreadable.keys() - self._unreadable.keys()):
                log.warning("%s", unreadable[name], extra={"queue": name})
            self._latest, self._unreadable = samples, unreadable
            self._listed = {key: counted for key, counted in self._listed.items() if key[0] in samples}
            self._slow = {name: at for name, at in self._slow.items() if name in unreadable}
            self._looked = time.monotonic()
            if begun - self._kept < EVERY / 2:
                return
            self._kept = begun
            self._history = {name: self._history.get(name, deque(maxlen=KEPT)) for name in names}
            for name, sample in self._latest.items():
                self._history[name].append(sample)

    async def look_at(self, name: str) -> None:
        """Look at one queue now. Raises: UnreadableError; as `look`."""
        self._latest[name] = await self._try(name)

    @property
    def latest(self) -> dict[str, Sample]:
        """The last look at each queue, by name."""
        return self._latest

    @property
    def looked_at(self) -> float:
        """When the queues were looked at last, seconds since 1970; 0: never."""
        return max(0.0, time.time() - (time.monotonic() - self._looked))

    @property
    def unreadable(self) -> dict[str, str]:
        """Why queues could not be read at the last look, by name."""
        return self._unreadable

    def history(self, name: str) -> Sequence[Sample]:
        """What was seen of a queue, the oldest first."""
        return tuple(self._history.get(name, ()))

    def rates(self, name: str) -> Rates:
        """How fast messages come and go."""
        last = self._latest.get(name)
        earlier = [one for one in self.history(name) if last is not None and 0 < last.at - one.at <= 6.5 * EVERY]
        if last is None or not earlier:
            return Rates(0.0, 0.0)
        return rates_between(earlier[0], last)

    # -- inside

    async def _names(self) -> list[str]:
        engine = self._session.engine
        if self._queues is not None:
            return sorted(self._queues())[:MOST_QUEUES]
        names = sorted(await below(engine.zookeeper, engine.root))
        return [name for name in names if _is_queue(name)][:MOST_QUEUES]

    async def _try(self, name: str) -> Sample:
        """Look at a queue. Raises: UnreadableError; as `look` when ZooKeeper is away."""
        if time.monotonic() - self._slow.get(name, float("-inf")) < RETRY:
            raise UnreadableError(self._unreadable.get(name, f"queue {name!r} took too long to look at"))
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._sample(name)
        except NoAuthError as error:
            msg = f"queue {name!r} cannot be read: {error}"
            raise UnreadableError(msg) from error
        except (AccessDeniedError, PayloadError) as error:
            raise UnreadableError(str(error)) from error
        except TimeoutError as error:
            if self._session.engine.zookeeper.state is not State.CONNECTED:
                raise
            self._slow[name] = time.monotonic()
            msg = f"queue {name!r} could not be read within {PATIENCE:g} s; the next look is in {RETRY:g} s"
            raise UnreadableError(msg) from error

    async def _sample(self, name: str) -> Sample:
        engine = self._session.engine
        store = engine.store(name)
        paths = store.paths
        config = await configuration(engine, store)
        folders = await lanes_of(engine, store, config)
        if len(folders) > MOST_FOLDERS:
            msg = (
                f"queue {name!r} has {len(folders):,} lanes and hours of scheduled messages, more than the "
                f"{MOST_FOLDERS:,} that are looked at; `aiozkqueue clean {name}` removes hours that are over"
            )
            raise UnreadableError(msg)
        stats: dict[str, Stat] = {}
        for start in range(0, len(folders), PAGE):
            page = folders[start : start + PAGE]
            found = await asyncio.gather(*map(engine.zookeeper.exists, page))
            stats |= {folder: stat for folder, stat in zip(page, found, strict=True) if stat is not None}
        held = {folder: stat.num_children for folder, stat in stats.items()}
        locks, due, dead, consumers = await asyncio.gather(
            *(count(engine, store, path) for path in (paths.locks, paths.due, paths.dlq, paths.consumers))
        )
        ended = await self._list_for(name, "ended", partial(count_ended, engine, store)) if due else 0
        later = any(number for folder, number in held.items() if folder.startswith(f"{paths.later}/"))
        scheduled = (
            await self._list_for(name, "scheduled", partial(count_scheduled, engine, store, held)) if later else 0
        )
        staged = await count_staged(engine, store, config)
        size = sum(held.values())
        oldest = await self._find_oldest(name, folders, size)
        return Sample(
            at=time.time(),
            size=size,
            in_flight=max(0, locks - due - staged),
            retrying=max(0, due - ended),
            scheduled=scheduled,
            dead=dead,
            consumers=consumers,
            put=sum(map(put_into, stats.values())),
            # On the system's clock, as the other moments here: a clock that is moved is ahead of that.
            oldest=None if oldest is None else oldest - engine.clock.moved,
        )

    async def _list_for(self, name: str, what: str, count: Callable[[], Coroutine[object, object, int]]) -> int:
        """Return a number that takes a listing. Where that takes long, the number is kept for twenty times as long."""
        until, number = self._listed.get((name, what), (float("-inf"), 0))
        begun = time.monotonic()
        if begun < until:
            return number
        number = await count()
        now = time.monotonic()
        self._listed[name, what] = now + 20 * (now - begun) - EVERY / 2, number
        return number

    async def _find_oldest(self, name: str, folders: list[str], size: int) -> float | None:
        """When the oldest message was put: the same as at the last look, unless that one is gone."""
        engine = self._session.engine
        path, created = self._oldest.get(name, ("", 0.0))
        if path and size and await engine.zookeeper.exists(path) is not None:
            return created
        self._oldest.pop(name, None)
        if not 0 < size <= LISTED:
            return None
        store = engine.store(name)
        first = [one for folder in folders for one in await first_items(engine, store, [folder], 1)]
        for one in sorted(first, key=lambda one: (one.generation, one.item.sequence))[:1]:
            stat = await engine.zookeeper.exists(one.path)
            if stat is not None:
                self._oldest[name] = one.path, stat.ctime / 1000
                return stat.ctime / 1000
        return None


def rates_between(one: Sample, other: Sample) -> Rates:
    """Messages a second put and removed between two looks."""
    seconds = max(other.at - one.at, 0.001)
    put = max(0, other.put - one.put)
    return Rates(put / seconds, max(0, put - (other.size - one.size)) / seconds)


def _is_queue(name: str) -> bool:
    try:
        check_queue_name(name)
    except InvalidNameError:
        return False
    return True
