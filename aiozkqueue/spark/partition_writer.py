"""The rows of one partition, on their way into a batch that becomes visible as a whole.

Every write to ZooKeeper is one multi: the batch's fence, the progress of the partition at the version read, and the
items. A retried task therefore continues after the last stored row. If two attempts run at once, the slower one finds
that the progress has changed, reads it, and continues after it. After the batch has been discarded, no attempt can put
rows. Spark must give each attempt the same rows in the same order, which a digest of the stored rows verifies.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.batches.ended_writes import UNKNOWN_ORIGIN, AttemptOrigin
from aiozkqueue.batches.staging import FencedError, OvertakenError, fenced_puts
from aiozkqueue.errors import InvalidOptionError, NotCommittedError, TransactionTooLargeError
from aiozkqueue.operations.batch_writers import marks_of
from aiozkqueue.queue.commit.put import PlainPuts
from aiozkqueue.queue.put.capacity import credits_of
from aiozkqueue.queue.put.prepare import make_ready, prepare, prepare_all
from aiozkqueue.runtime.deadline import Deadline
from aiozkqueue.zookeeper import (
    Create,
    MultiError,
    NodeExistsError,
    NoNodeError,
    SetData,
    apply_until_answered,
)

from .row_digest import RowDigest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aiozkqueue.batches.staging import BatchWriter, Fence
    from aiozkqueue.queue.commit.put import Put

    from .connection import Link
    from .rows import Row

#: Maximum size of the items in one write, bytes. A larger item gets its own write.
MOST_BYTES: Final = 256 * 1024
_NOTHING: Final = RowDigest.empty().hexdigest()


class Progress(NamedTuple):
    """The number of stored rows of a part of a batch, their digest, and the version of this record."""

    rows: int
    digest: str
    version: int


class BatchIdentity(NamedTuple):
    """The batch and its writer; for the other fields see `BatchWriter.begin`."""

    writer: str
    number: int
    run: str
    made: AttemptOrigin = UNKNOWN_ORIGIN


class PartitionWriter:
    """Writes one partition of one batch. Each attempt at the partition has its own writer."""

    def __init__(self, link: Link, staging: BatchWriter, batch: BatchIdentity, partition: int, fence: Fence) -> None:
        self._link = link
        self._staging = staging
        self._batch = batch
        self.fence: Fence = fence
        self._path = f"{staging.path}/p{partition:05d}"
        self._progress = Progress(0, _NOTHING, -1)
        self._passed = 0  # number of rows that are known to be stored
        self._digest = RowDigest.empty()  # of those
        self._waiting: list[Row] = []

    async def open(self) -> None:
        """Read the progress. Raises: NotCommittedError: the queue was deleted."""
        with self._required():
            await _create_once(self._link, self._path)
            await self._read()
        self._compare()

    async def add(self, rows: Sequence[Row]) -> None:
        """Add rows, and store as many as fill complete writes."""
        self._waiting.extend(rows)
        self._pass_over()
        while len(self._waiting) >= self._link.options.rows:
            await self._store()

    async def finish(self) -> int:
        """Store the remaining rows, and return the total number."""
        while self._waiting:
            await self._store()
        if self._passed < self._progress.rows:
            raise self._differing_rows()
        return self._passed

    async def _store(self) -> None:
        link, state = self._link, self._link.state
        if not state.ready:
            await state.open_or_create()
        most = link.options.rows
        if state.snapshot.capacity is not None:
            most = min(most, credits_of(state.config.max_size or 1))
        most_bytes = min(MOST_BYTES, link.runtime.safe_size)
        puts = _fitting(self._puts_of(self._waiting[:most]), most_bytes)
        digest = self._digest.copy()
        digest.update(_contents(self._waiting[: len(puts)]))
        await make_ready(puts)
        after = Progress(self._passed + len(puts), digest.hexdigest(), self._progress.version + 1)
        written = SetData(self._path, _encode(self.fence.stage, after), self._progress.version)
        deadline = Deadline(link.options.put_timeout, link.runtime.clock)
        atomic_write = fenced_puts(link.runtime.ids.next(), puts, self.fence, written, deadline)
        if state.snapshot.capacity is not None:
            await state.snapshot.capacity.acquire(len(puts), len(puts), deadline)
            state.snapshot.capacity.bind(atomic_write, len(puts))
        try:
            await link.runtime.settle(atomic_write)
        except OvertakenError:
            with self._required():
                await self._read()
        except FencedError as error:
            await self._renew(error)
        except TransactionTooLargeError:
            if len(puts) == 1 or link.runtime.safe_size >= most_bytes:
                raise  # otherwise the limit has turned out to be lower, and the next write has fewer rows
        else:
            self._progress, self._passed, self._digest = after, after.rows, digest
            del self._waiting[: len(puts)]
        self._pass_over()

    def _puts_of(self, rows: Sequence[Row]) -> Iterable[Put]:
        """Return the puts of rows, each with the batch's field in its name, and the row's mark if it has one."""
        runtime = self._link.runtime
        queue = self._link.session.queue(self._link.options.queue)
        if runtime.tracing is None and not any(row.options or row.mark for row in rows):
            return prepare_all(runtime, queue, [row.body for row in rows], f"{self.fence.stage}-")
        staged = (self.fence.staged(prepare(runtime, queue, row.body, row.options)) for row in rows)
        return (put.with_field(row.mark) if row.mark else put for put, row in zip(staged, rows, strict=True))

    async def _renew(self, cause: FencedError) -> None:
        """Continue if the batch is still the same. Raises: NotCommittedError."""
        fence = await self._staging.renew(self._batch.number, self._batch.run)
        if fence is None or fence.stage != self.fence.stage:
            msg = (
                f"queue {self._link.options.queue!r}: this batch is {'complete' if fence is None else 'discarded'}; "
                "this task belongs to an earlier attempt"
            )
            raise NotCommittedError(msg) from cause
        self.fence = fence

    @contextmanager
    def _required(self) -> Iterator[None]:
        """Expect the batch's records to exist. Raises: NotCommittedError."""
        try:
            yield
        except NoNodeError as error:
            msg = (
                f"queue {self._link.options.queue!r}: the records of this batch no longer exist: the queue was "
                "deleted, or they were removed manually. Write the batch again"
            )
            raise NotCommittedError(msg) from error

    async def _read(self) -> None:
        zookeeper = self._link.runtime.zookeeper
        await zookeeper.sync(self._path)
        data, stat = await zookeeper.read(self._path)
        stored = read_progress(data, self.fence.stage)
        self._progress = (
            Progress(0, _NOTHING, stat.version) if stored is None else stored._replace(version=stat.version)
        )

    def _pass_over(self) -> None:
        """Drop the rows that are already stored, and check that they are the same."""
        if stored := self._waiting[: max(0, self._progress.rows - self._passed)]:
            self._digest.update(_contents(stored))
            self._passed += len(stored)
            del self._waiting[: len(stored)]
            self._compare()

    def _compare(self) -> None:
        if self._passed == self._progress.rows and self._digest.hexdigest() != self._progress.digest:
            raise self._differing_rows()

    def _differing_rows(self) -> InvalidOptionError:
        return InvalidOptionError(
            f"queue {self._link.options.queue!r}: the first {self._progress.rows} rows of a partition are stored, but "
            "this task got different rows. Write rows in a fixed order and in the same number of partitions (sort or "
            "checkpoint them first). The stored rows of this batch are removed, so that it can be written again"
        )


class MarkedPartitionWriter(PartitionWriter):
    """Writes a partition whose rows a column identifies. A row is put once, in any order and by any partition."""

    def __init__(self, link: Link, staging: BatchWriter, batch: BatchIdentity, partition: int, fence: Fence) -> None:
        super().__init__(link, staging, batch, partition, fence)
        self._known: set[str] = set()

    async def finish(self) -> int:
        """Store the remaining rows, and return the number of rows that this partition has put."""
        while self._waiting:
            await self._store()
        return self._progress.rows

    async def _read(self) -> None:
        await super()._read()
        self._passed = self._progress.rows
        self._known = await marks_of(self._link.handle, self.fence.stage)

    def _pass_over(self) -> None:
        """Drop the rows that are already stored."""
        if self._known:
            self._waiting = [row for row in self._waiting if row.mark not in self._known]

    def _compare(self) -> None:
        """Accept any rows."""


def _contents(rows: Iterable[Row]) -> list[bytes]:
    """Return the values for the digest: the payload of each row, and its put options if it has any."""
    contents: list[bytes] = []
    for row in rows:
        contents.append(row.body)
        if row.options:
            contents.append(repr(sorted(row.options.items())).encode())
    return contents


def _fitting(puts: Iterable[Put], most: float) -> Sequence[Put]:
    """Return the first puts: as many as one write of this size holds, and at least one."""
    if type(puts) is PlainPuts:
        ends = list(accumulate(map(len, puts.bodies)))
        return puts[: max(1, bisect_right(ends, most))]
    chosen: list[Put] = []
    size = 0
    for put in puts:
        size += len(put.data)
        if chosen and size > most:
            break
        chosen.append(put)
    return chosen


def read_progress(data: bytes, stage: str) -> Progress | None:
    """Read the progress of a part; None if it belongs to another batch, or to another attempt."""
    fields = json.loads(data or b"{}")
    if fields.get("stage") != stage:
        return None
    return Progress(int(fields["rows"]), str(fields["digest"]), -1)


def _encode(stage: str, progress: Progress) -> bytes:
    return json.dumps({"stage": stage, "rows": progress.rows, "digest": progress.digest}).encode()


async def _create_once(link: Link, path: str) -> None:
    """Create a znode unless it exists. A lost reply changes nothing."""
    zookeeper = link.runtime.zookeeper
    if await zookeeper.exists(path) is not None:
        return
    try:
        await apply_until_answered(zookeeper, [Create(path, b"")])
    except MultiError as refusal:
        if not isinstance(refusal.error, NodeExistsError):
            raise refusal.error from refusal
