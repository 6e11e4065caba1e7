"""A stream into a queue: each row once, whatever is tried again.

As in a batch write (see `writing`), each multi sets the progress of its partition and creates the items. The progress
belongs to the query, by the id in its checkpoint, and says which batch it is about: a batch that is tried again goes on
behind what is stored, and a task of an earlier one, come back from the dead, puts nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.layout import key_hash

from .connection import linked
from .rows import RowEncoder
from .writing import LaterBatchError, Written, create_once, open_partition

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from .connection import Link
    from .options import Options
    from .writing import Partition

#: Where a task finds what it belongs to.
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches. Made anew for each, and sent to the tasks in a pickle."""

    def __init__(self, schema: StructType, options: Options) -> None:
        if options.write_id is not None:
            msg = "writeId: a stream is named by its checkpoint; leave the option out"
            raise InvalidOptionError(msg)
        self._schema = schema
        self._options = options
        RowEncoder(schema)  # refuses columns before anything runs

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Put a partition's rows of one batch.

        Raises:
            PayloadError, MessageTooLargeError: a row cannot be put; none behind it was.
            InvalidOptionError: so too, or the rows are not those of the attempt before.
            QueueFullError, ConnectionLostError, AccessDeniedError.
        """
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark calls this in a task
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            msg = "this task belongs to no streaming query: use df.write for a batch"
            raise InvalidOptionError(msg)
        encoder = RowEncoder(self._schema)
        with linked(self._options) as link:
            partition = link.call(_open, link, query, context.partitionId(), int(batch))
            if partition is None:
                return Written(0)
            try:
                for rows in iterator:
                    link.call(partition.add, encoder.rows(rows))
                return Written(link.call(partition.finish))
            except LaterBatchError:
                return Written(0)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """All rows of a batch are there: nothing is left to do."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """A batch has failed. What was put stays; when it is tried again, the rest is added."""


async def _open(link: Link, query: str, number: int, batch: int) -> Partition | None:
    await link.store.open()
    await link.engine.zookeeper.ensure(link.store.paths.sinks)
    folder = f"{link.store.paths.sinks}/{key_hash(f'stream {query}')}"
    await create_once(link, folder, b"")
    return await open_partition(link, f"{folder}/p{number:05d}", batch)
