"""A stream into a queue. Each row is put once despite retries, and each micro-batch becomes visible as a whole.

It works like a batch write (see `writing`) with many batches. The writer is the query. The checkpoint of the query
contains its id and numbers the batches. If the driver is killed in a batch, the retry continues after the stored rows.
If a complete batch is retried, the retry adds nothing, even if the messages were taken long ago. A late task of an
earlier batch is refused.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from aiozkqueue.batches.ended_writes import AttemptOrigin, end_attempts
from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.operations.batch_writers import began_by

from .connection import linked
from .order import moment
from .partition_writer import BatchIdentity
from .rows import RowEncoder
from .writing import Written, complete, driver_options, logged_failure, put_partition, staging_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from .connection import Link
    from .options import Options

log: Final = logging.getLogger(__name__)

#: The local properties of a task that contain its query, batch and run.
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"
_RUN: Final = "spark.jobGroup.id"


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches. Spark creates a writer for each micro-batch and pickles it for the tasks."""

    def __init__(self, schema: StructType, options: Options, origin: str) -> None:
        """``origin`` is the same for all writers of one query and, as far as can be known, for no other query."""
        if options.write_id is not None or options.txn_app is not None:
            msg = "writeId, txnAppId and txnVersion: the checkpoint identifies a stream; leave the options out"
            raise InvalidOptionError(msg)
        self._schema = schema
        self._options = options
        self._made = AttemptOrigin(origin, moment())
        RowEncoder(schema, options.id_column)  # refuses bad columns before anything runs

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Put a partition's rows of one batch.

        Raises:
            PayloadError, MessageTooLargeError: a row cannot be put.
            InvalidOptionError: a row cannot be put, or the rows differ from the rows of the previous attempt.
            QueueFullError, ConnectionLostError, AccessDeniedError, NotCommittedError.
        """
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark calls this in a task
        query, batch, run = map(context.getLocalProperty, (_QUERY, _BATCH, _RUN))
        if query is None or batch is None:
            msg = "this task does not belong to a streaming query: use df.write for a batch"
            raise InvalidOptionError(msg)
        identity = BatchIdentity(f"stream {query}", int(batch), run or "", self._made)
        options = self._options.after_contact if int(batch) else self._options
        return put_partition(options, identity, self._schema, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Make all rows of the batch available, after all tasks have ended."""
        for name in {message.name for message in messages if isinstance(message, Written)}:  # empty without tasks
            with linked(driver_options(self._options, messages)) as link:
                link.call(complete, link, link.call(staging_of, link, name), batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Remove the rows of a failed batch, unless another run has taken it over.

        If no task has reported its query and run, the query is found by its origin, provided that a task has begun the
        batch. If no task has begun it, the attempts that the driver has created so far can no longer do so.
        """
        queue, extra = self._options.queue, {"queue": self._options.queue}
        with logged_failure(queue), linked(self._options) as link:
            runs: dict[str, str | None] = {
                message.name: message.run for message in messages if isinstance(message, Written)
            }
            runs = runs or dict.fromkeys(link.call(_ended, link, self._made, batchId))
            if len(runs) > 1:  # two queries that cannot be distinguished here
                log.warning("queue %s: the rows of a failed batch are kept for its retry", queue, extra=extra)
                return
            for name, run in runs.items():
                removed = link.call(link.call(staging_of, link, name).abort, batchId, run)
                log.error("queue %s: a batch failed; its %d stored rows were removed", queue, removed, extra=extra)


async def _ended(link: Link, made: AttemptOrigin, batch: int) -> list[str]:
    """End the attempts at a batch whose query is not known; return the names of the writers that have begun one."""
    handle = link.handle
    await end_attempts(handle, batch, made)
    return await began_by(handle, made.origin, batch)
