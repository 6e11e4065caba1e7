"""The samples of the last 24 hours, stored in ZooKeeper: all servers show the same charts, also after a restart.

Every 30 seconds, the first server that notices that a sample is due adds one of all queues. The write asserts the
version of the znode, so the others see that they are late, and read that sample. Each server thus reads one znode every
30 seconds, and all servers together write one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.layout import MalformedError
from aiozkqueue.layout.samples import MISSING, SLOTS, SPAN, SamplePaths, SampleRecord
from aiozkqueue.zookeeper import (
    BadVersionError,
    Create,
    MultiError,
    NodeExistsError,
    NoNodeError,
    SetData,
    ZooKeeperError,
    read_pages,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiozkqueue.sampling import Sample, Sampler
    from aiozkqueue.session.core import SessionCore
    from aiozkqueue.zookeeper import Operation

log: Final = logging.getLogger(__name__)

#: Seconds between two stored samples.
EVERY: Final = 30
#: Seconds between two checks whether a sample is due.
POLL: Final = 5.0


class Point(NamedTuple):
    """The figures of a queue at one time, for charts."""

    at: float
    """Seconds since 1970."""
    put: int
    size: int
    waiting: int
    in_flight: int
    dead: int


class Charts:
    """The stored samples of one root."""

    def __init__(self, runtime: SessionCore, sampler: Sampler) -> None:
        self._runtime = runtime
        self._sampler = sampler
        self._paths = SamplePaths(runtime.root)
        self._records: dict[int, SampleRecord] = {}

    async def run(self) -> None:
        """Read the stored samples, and add one whenever it is due."""
        loaded, last_error = False, ""
        while True:
            try:
                if not loaded:
                    await self.load()
                    loaded = True
                await self.keep()
            except (ZooKeeperError, TimeoutError) as error:
                if str(error) != last_error:
                    log.warning("the samples of the queues are not stored: %s", error)
                last_error = str(error)
            await asyncio.sleep(POLL)

    async def load(self) -> None:
        """Read all stored samples. Raises: ZooKeeperError."""
        slots = [self._paths.slot(number * SPAN) for number in range(SLOTS)]
        for path, node in zip(slots, await read_pages(self._runtime.zookeeper, slots), strict=True):
            if node is not None:
                await self._take(path, node.data)

    async def keep(self) -> None:
        """Add the last sample if that is due and no other server has done it. Raises: ZooKeeperError."""
        at = int(self._sampler.sampled_at)
        if not self._is_due(self._records.get(at - at % SPAN), at):
            return
        record, version = await self._current(at)
        if not self._is_due(record, at):
            return
        histories = {name: self._sampler.history(name) for name in self._sampler.latest}
        record.add(at, {name: _figures(samples[-1]) for name, samples in histories.items() if samples})
        data = await asyncio.to_thread(record.encode)
        path = self._paths.slot(record.begin)
        operation = Create(path, data) if version is None else SetData(path, data, version)
        if not await self._write(operation):
            await self._current(at)  # another server was faster

    @staticmethod
    def _is_due(record: SampleRecord | None, at: int) -> bool:
        return at > 0 and (record is None or not record.at or at - record.begin - record.at[-1] >= EVERY)

    def points(self, queue: str, since: float) -> list[Point]:
        """Return the stored samples of a queue since a time (seconds since 1970), the oldest first."""
        return [
            point
            for begin in sorted(self._records)
            if begin + SPAN >= since
            for point in _points(self._records[begin], queue)
            if point.at >= since
        ]

    # -- internal

    async def _current(self, at: int) -> tuple[SampleRecord, int | None]:
        """Read the samples of the half hour of a time, and the version of their znode; None: it does not exist."""
        begin = at - at % SPAN
        path = self._paths.slot(begin)
        version: int | None = None
        try:
            data, stat = await self._runtime.zookeeper.read(path)
        except NoNodeError:
            pass
        else:
            version = stat.version
            await self._take(path, data)
        self._records = {start: record for start, record in self._records.items() if start > begin - SLOTS * SPAN}
        return self._records.setdefault(begin, SampleRecord(begin)), version

    async def _take(self, path: str, data: bytes) -> None:
        try:
            record = await asyncio.to_thread(SampleRecord.decode, data)
        except MalformedError as error:
            log.warning("%s does not decode and is overwritten: %s", path, error)
            return
        self._records[record.begin] = record

    async def _write(self, operation: Operation) -> bool:
        """Write, and return whether that was applied. If the reply is lost, the next read shows the outcome."""
        zookeeper = self._runtime.zookeeper
        if isinstance(operation, Create):
            await zookeeper.ensure(self._paths.base)
        try:
            await zookeeper.multi([operation])
        except MultiError as error:
            if not isinstance(error.error, BadVersionError | NodeExistsError):
                raise error.error from error
            return False
        return True


def _figures(sample: Sample) -> tuple[int, int, int, int, int]:
    return sample.put, sample.size, sample.waiting, sample.in_flight, sample.dead


def _points(record: SampleRecord, queue: str) -> Iterator[Point]:
    columns = record.queues.get(queue)
    if columns is None:
        return
    for at, *figures in zip(record.at, *columns, strict=True):
        if figures[0] != MISSING:
            yield Point(record.begin + at, *figures)


def point_of(sample: Sample) -> Point:
    """Return the point of a sample."""
    return Point(sample.at, *_figures(sample))
