"""Rows into a queue, in parallel, each once however often Spark tries a task.

Every write to ZooKeeper is one multi: the progress of its partition, at the version read, and the items. So a task that
is tried again goes on behind the last row that is stored, and of two that run at once the one that comes second finds
the progress moved, reads it, and goes on behind that. This needs what Spark gives a task to be the same each time: the
same number of partitions, and the same rows in the same order in each. A digest of the rows that are stored tells when
that is not so.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from aiozkqueue.errors import InvalidOptionError, NotCommittedError
from aiozkqueue.layout import key_hash
from aiozkqueue.queue.commits.settlements import OPERATION_WEIGHT, PutSettlement
from aiozkqueue.queue.puts.putting import make_ready, prepare
from aiozkqueue.queue.puts.room import credits_of
from aiozkqueue.zookeeper import (
    ConnectionLossError,
    Create,
    Delete,
    MultiError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
    SetData,
)

from .connection import linked
from .rows import RowEncoder

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from aiozkqueue.queue.commits.settlements import Put
    from aiozkqueue.zookeeper import Operation, Result, ZooKeeperError

    from .connection import Link
    from .options import Options
    from .rows import Row

log = logging.getLogger(__name__)

#: Bytes of items in one write, at the most (one that is larger goes alone).
MOST_BYTES: Final = 256 * 1024
#: What is stored of a write that is done.
DONE: Final = b"done"
_NOTHING: Final = blake2b(digest_size=16).hexdigest()


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    rows: int
    """How many rows of the partition are in the queue now."""


class QueueWriter(DataSourceArrowWriter):
    """Writes a data frame. Made on the driver, and sent to each task in a pickle."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema = schema
        self._options = options
        self._kept = options.write_id is not None
        self._write_id = options.write_id or uuid4().hex
        RowEncoder(schema)  # refuses columns before any job runs

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Put a partition's rows.

        Raises:
            PayloadError, MessageTooLargeError: a row cannot be put; none behind it was.
            InvalidOptionError: so too, or the rows are not those of the attempt before.
            QueueFullError, ConnectionLostError, AccessDeniedError.
        """
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark calls this in a task
        encoder = RowEncoder(self._schema)
        with linked(self._options) as link:
            call = link.call
            partition = call(_open, link, key_hash(self._write_id), context.partitionId())
            if partition is None:
                return Written(0)
            for batch in iterator:
                call(partition.add, encoder.rows(batch))
            return Written(call(partition.finish))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks are done: what is written again under a `writeId` that was given is known, and left out."""
        with linked(self._options) as link:
            link.call(partial(_conclude, keep=self._kept), link, key_hash(self._write_id), len(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """The job has failed. What is stored stays; with the same `writeId` it can be gone on with."""
        log.error(
            "queue %s: the write failed; rows that were put stay. %s",
            self._options.queue,
            "Write again with the same writeId to add those that are missing."
            if self._kept
            else "Give a writeId to be able to write again without doubling them.",
        )


class OvertakenError(NotCommittedError):
    """Another attempt at the same task has moved the progress."""


class LaterBatchError(NotCommittedError):
    """A later batch of the stream has come to this partition: all of this one is stored."""


class ProgressSettlement(PutSettlement):
    """Items, and the progress that says that they are there."""

    __slots__ = ("_progress",)

    def __init__(self, transaction_id: str, puts: Sequence[Put], progress: SetData) -> None:
        super().__init__(transaction_id, puts)
        self.weight += OPERATION_WEIGHT + len(progress.data)
        self._progress = progress

    def operations(self) -> Sequence[Operation]:
        """Write the progress, then the items."""
        return [self._progress, *super().operations()]

    def refused(self, index: int, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Give up when another was quicker; else as any put."""
        if index == 0:
            raise OvertakenError(f"{self._progress.path}: {error}") from error
        return super().refused(index - 1, error)

    def applied(self, results: Sequence[Result] | None) -> None:
        """As any put."""
        super().applied(None if results is None else results[1:])


class Progress(NamedTuple):
    """How many rows of a partition of a batch are stored, a digest of them, and the version that says so."""

    rows: int
    digest: str
    version: int


class Partition:
    """One partition's rows on their way."""

    def __init__(self, link: Link, path: str, progress: Progress, batch: int) -> None:
        self._batch = batch  # of a stream; 0 in a batch write
        self._link = link
        self._path = path
        self._progress = progress
        self._passed = 0  # rows that are known to be stored
        self._digest = blake2b(digest_size=16)  # of those
        self._waiting: deque[Row] = deque()
        self._compare()

    async def add(self, rows: Sequence[Row]) -> None:
        """Take rows, and store as many of them as fill writes."""
        self._waiting.extend(rows)
        self._pass_over()
        while len(self._waiting) >= self._link.options.rows:
            await self._store()

    async def finish(self) -> int:
        """Store what is left; return how many rows there are."""
        while self._waiting:
            await self._store()
        if self._passed < self._progress.rows:
            raise self._another()
        return self._passed

    async def _store(self) -> None:
        link, store = self._link, self._link.store
        if not store.ready:
            await store.open()
        most = link.options.rows
        if store.room is not None:
            most = min(most, credits_of(store.config.max_size or 1))
        queue = link.session.queue(link.options.queue)
        puts: list[Put] = []
        size = 0
        digest = self._digest.copy()
        for row in islice(self._waiting, most):
            put = prepare(link.engine, queue, row.body, row.options)
            size += len(put.data)
            if puts and size > MOST_BYTES:
                break
            puts.append(put)
            _take_in(digest, row)
        await make_ready(puts)
        after = Progress(self._passed + len(puts), digest.hexdigest(), self._progress.version + 1)
        data = json.dumps({"batch": self._batch, "rows": after.rows, "digest": after.digest}).encode()
        settlement = ProgressSettlement(link.engine.ids.next(), puts, SetData(self._path, data, self._progress.version))
        if store.room is not None:
            await store.room.enter(len(puts), link.options.put_timeout)
            store.room.passed(settlement, len(puts))
        try:
            await link.engine.settle(settlement)
        except OvertakenError:
            self._progress = await _read(link, self._path, self._batch)
        else:
            self._progress = after
        self._pass_over()

    def _pass_over(self) -> None:
        """Drop what is stored already, and see that it is the same."""
        while self._waiting and self._passed < self._progress.rows:
            _take_in(self._digest, self._waiting.popleft())
            self._passed += 1
            self._compare()

    def _compare(self) -> None:
        if self._passed == self._progress.rows and self._digest.hexdigest() != self._progress.digest:
            raise self._another()

    def _another(self) -> InvalidOptionError:
        return InvalidOptionError(
            f"queue {self._link.options.queue!r}: a partition's first {self._progress.rows} rows have been put, and "
            "this task was given others: write what is in a fixed order and as many partitions each time (sort it, or "
            "checkpoint it first), or take another writeId"
        )


def _take_in(digest: blake2b, row: Row) -> None:
    digest.update(len(row.body).to_bytes(4, "big"))
    digest.update(row.body)


async def open_partition(link: Link, path: str, batch: int = 0) -> Partition | None:
    """Find out how far a partition of a batch has come; None when a later batch has come already."""
    await create_once(link, path, json.dumps({"batch": batch, "rows": 0, "digest": _NOTHING}).encode())
    try:
        return Partition(link, path, await _read(link, path, batch), batch)
    except LaterBatchError:
        return None


async def _open(link: Link, name: str, number: int) -> Partition | None:
    """Find out how far a partition has come; None when the whole write is done."""
    await link.store.open()
    await link.engine.zookeeper.ensure(link.store.paths.sinks)
    folder = f"{link.store.paths.sinks}/{name}"
    await create_once(link, folder, b"")
    if (await link.engine.zookeeper.read(folder)).data == DONE:
        return None
    return await open_partition(link, f"{folder}/p{number:05d}")


async def create_once(link: Link, path: str, data: bytes) -> None:
    """Create a znode unless it is there, whatever becomes of replies."""
    zookeeper = link.engine.zookeeper
    while await zookeeper.exists(path) is None:
        try:
            await zookeeper.multi([Create(path, data)])
        except MultiError as refusal:
            if not isinstance(refusal.error, NodeExistsError):
                raise refusal.error from refusal
        except (ConnectionLossError, SessionExpiredError):
            await zookeeper.wait_connected()


async def _read(link: Link, path: str, batch: int) -> Progress:
    await link.engine.zookeeper.sync(path)
    data, stat = await link.engine.zookeeper.read(path)
    fields = json.loads(data)
    stored = int(fields["batch"])
    if stored > batch:
        msg = f"{path}: batch {stored} is being written, so that batch {batch} has been; this task is one of the past"
        raise LaterBatchError(msg)
    if stored < batch:
        return Progress(0, _NOTHING, stat.version)
    return Progress(int(fields["rows"]), str(fields["digest"]), stat.version)


async def _conclude(link: Link, name: str, partitions: int, *, keep: bool) -> None:
    """Note that a write is done, and forget how far its partitions came. Raises: InvalidOptionError."""
    zookeeper = link.engine.zookeeper
    folder = f"{link.store.paths.sinks}/{name}"
    try:
        names = await zookeeper.children(folder)
    except NoNodeError:
        return  # nothing was written
    extra = [one for one in names if int(one[1:]) >= partitions]
    if extra:
        msg = (
            f"queue {link.options.queue!r}: this writeId was begun with at least {len(names)} partitions, and now "
            f"there are {partitions}: rows may have been put twice"
        )
        raise InvalidOptionError(msg)
    try:
        if keep:
            await zookeeper.multi([SetData(folder, DONE)])
        for path in (f"{folder}/{one}" for one in names):
            await zookeeper.multi([Delete(path)])
        if not keep:
            await zookeeper.multi([Delete(folder)])
    except (MultiError, ConnectionLossError, SessionExpiredError) as error:
        log.info("queue %s: the progress of a write stays in %s: %s", link.options.queue, folder, error)
        if keep and isinstance(error, ConnectionLossError | SessionExpiredError):
            raise
