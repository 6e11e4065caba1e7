"""Parallel writes of rows to a queue. Each row is put once despite retries, and all become visible at the same moment.

A write is one batch of a `BatchWriter`. A stream writes many batches, one for each micro-batch. Tasks put the rows of a
batch as pending items (see `partition_writer`). If all tasks succeed, the driver makes the batch visible. Otherwise it
removes the batch.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from aiozkqueue.batches.staging import BatchWriter
from aiozkqueue.errors import NotCommittedError, QueueError
from aiozkqueue.operations.batch_writers import name_of_application, name_of_write
from aiozkqueue.worker.heap import settled_heap
from aiozkqueue.zookeeper import read_pages

from .batching import with_rows
from .connection import linked
from .partition_writer import BatchIdentity, MarkedPartitionWriter, PartitionWriter, read_progress
from .rows import RowEncoder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from .connection import Link
    from .options import Options

log: Final = logging.getLogger(__name__)


@dataclass
class Written(WriterCommitMessage):
    """The report of a task to the driver."""

    name: str
    """The name of the writer."""
    partition: int
    rows: int
    """The number of rows of the partition that are in the queue now."""
    stage: str | None
    """The attempt at the batch that the rows belong to; None: the batch was already complete, or there are no rows."""
    run: str
    """The run of the task; see `partition_writer.BatchIdentity.run`."""


class QueueWriter(DataSourceArrowWriter):
    """Writes a data frame. Created on the driver, and sent to each task in a pickle."""

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema = schema
        self._options = options
        self._run = uuid4().hex
        if options.txn_app is None:
            self._name = name_of_write(options.write_id or self._run)
        else:
            self._name = name_of_application(options.txn_app)
        RowEncoder(schema, options.id_column)  # refuses bad columns before any job runs

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Put a partition's rows.

        Raises:
            PayloadError, MessageTooLargeError: a row cannot be put.
            InvalidOptionError: a row cannot be put, or the rows differ from the rows of the previous attempt.
            QueueFullError, ConnectionLostError, AccessDeniedError, NotCommittedError.
        """
        batch = BatchIdentity(self._name, self._options.txn_version, self._run)
        return put_partition(self._options, batch, self._schema, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make all rows available and record the identity of the write, after all tasks have ended."""
        with linked(driver_options(self._options, messages)) as link:
            staging = link.call(staging_of, link, self._name)
            link.call(complete, link, staging, self._options.txn_version, messages)
            with _logged_remains(self._options.queue):
                self._forget(link, staging)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002 - Spark's
        """Remove the rows of a failed job."""
        with logged_failure(self._options.queue), linked(self._options) as link:
            staging = link.call(staging_of, link, self._name)
            removed = link.call(staging.abort, self._options.txn_version, self._run)
            self._forget(link, staging)
            log.error(
                "queue %s: the write failed; its %d stored rows were removed",
                self._options.queue,
                removed,
                extra={"queue": self._options.queue},
            )

    def _forget(self, link: Link, staging: BatchWriter) -> None:
        """Remove the records that no later write needs. The records of an application are kept for its next write."""
        if self._options.write_id is not None:
            link.call(staging.forget_parts)
        elif self._options.txn_app is None:
            link.call(staging.forget)


def driver_options(options: Options, messages: Iterable[WriterCommitMessage | None]) -> Options:
    """Return the options of the driver's session, which waits out an outage if a task has reached the servers."""
    reached = any(isinstance(message, Written) and message.stage is not None for message in messages)
    return options.after_contact if reached else options


@contextmanager
def logged_failure(queue: str) -> Iterator[None]:
    """Log an error of an abort. If it were raised, Spark would report it instead of the error of the write."""
    try:
        yield
    except QueueError as error:
        log.error(  # noqa: TRY400 - the traceback would hide the error of the write
            "queue %s: the write failed, and rows that it has stored were not removed. They stay invisible: %s",
            queue,
            error,
            extra={"queue": queue},
        )


@contextmanager
def _logged_remains(queue: str) -> Iterator[None]:
    """Log an error after the rows are visible. If it were raised, the job would fail, and be run again."""
    try:
        yield
    except QueueError as error:
        log.warning(
            "queue %s: the write is complete, but its records were not removed. Clean-up removes them later: %s",
            queue,
            error,
            extra={"queue": queue},
        )


def put_partition(
    options: Options, batch: BatchIdentity, schema: StructType, iterator: Iterable[pa.RecordBatch]
) -> Written:
    """Put the rows of this task's partition. Raises: as `QueueWriter.write`.

    A partition without rows opens no session, unless the write has an id. Such a write may already be complete. Then no
    row is read.
    """
    context = TaskContext.get()
    assert context is not None  # noqa: S101 - Spark calls this in a task
    number, encoder = context.partitionId(), RowEncoder(schema, options.id_column)
    batches = with_rows(iterator) if options.write_id is None and options.txn_app is None else iterator
    if batches is None:
        return Written(batch.writer, number, 0, None, batch.run)
    with settled_heap(collect=False), linked(options) as link:
        staging = link.call(staging_of, link, batch.writer)
        fence = link.call(staging.begin, batch.number, batch.run, batch.made)
        if fence is None:
            return Written(batch.writer, number, 0, None, batch.run)
        writer_type = PartitionWriter if options.id_column is None else MarkedPartitionWriter
        part = writer_type(link, staging, batch, number, fence)
        link.call(part.open)
        for rows in batches:
            link.call(part.add, encoder.rows(rows))
        return Written(batch.writer, number, link.call(part.finish), part.fence.stage, batch.run)


async def staging_of(link: Link, writer: str) -> BatchWriter:
    """Return a writer of the queue."""
    return BatchWriter(link.handle, writer)


async def complete(
    link: Link, staging: BatchWriter, batch: int, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """Make a batch visible if its stored rows match the reports of its tasks. Raises: NotCommittedError.

    If a column identifies the rows, another attempt may have put them in other partitions.
    """
    reports = [message for message in messages if isinstance(message, Written)]
    rows = {report.partition: report.rows for report in reports if report.stage and report.rows}
    stages = await _stages_of(staging, batch, reports)
    stored: dict[int, int] = {}
    names = await staging.parts() if stages else []
    nodes = await read_pages(link.runtime.zookeeper, [f"{staging.path}/{name}" for name in names])
    for name, node in zip(names, nodes, strict=True):
        for stage in stages:
            progress = None if node is None else read_progress(node.data, stage)
            if progress is not None and progress.rows:
                stored[int(name[1:])] = progress.rows
    if len(stages) > 1 or (stored != rows and link.options.id_column is None):
        msg = (
            f"queue {link.options.queue!r}: the tasks report {rows} rows by partition, but {stored} are stored: the "
            "batch was begun with other partitions, or has been discarded. Its rows are removed; write it again"
        )
        raise NotCommittedError(msg)
    await staging.complete(batch, next(iter(stages), None))


async def _stages_of(staging: BatchWriter, batch: int, reports: Sequence[Written]) -> set[str]:
    """Return the attempts at a batch that its tasks have reported; none if it was already complete.

    If no task has begun the batch, this function begins it, so that rows of an earlier run are found and compared.
    """
    stages = {report.stage for report in reports if report.stage is not None}
    if reports and not stages:
        fence = await staging.begin(batch, reports[0].run)
        return set() if fence is None else {fence.stage}
    return stages
