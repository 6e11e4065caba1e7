"""The format ``aiozkqueue`` for Spark."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.layout import key_hash

from .columns import default_schema
from .options import Content, Direction, parse_options, unused_options
from .reading import FilteringReader, QueueReader
from .rejecting import DeadLetterWriter
from .sink import QueueStreamWriter
from .streaming import QueueStreamReader
from .writing import QueueWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from .options import Options


log: Final = logging.getLogger(__name__)


class AiozkqueueDataSource(DataSource):
    """Queues, as data frames and streams."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "aiozkqueue"

    def schema(self) -> StructType:
        """Return the default columns. Raises: InvalidOptionError, InvalidNameError."""
        return default_schema(parse_options(self.options).content)

    def reader(self, schema: StructType) -> QueueReader:
        """Return the reader of a queue's current contents. Raises: as `schema`."""
        options = self._parsed(Direction.READ)
        return (FilteringReader if options.push_down else QueueReader)(schema, options)

    def streamReader(self, schema: StructType) -> QueueStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a queue as a stream. The query itself fails with the last two of these errors.

        Raises:
            InvalidOptionError: an option is unknown or out of range.
            InvalidNameError: the name of the queue or of the group is invalid.
            CheckpointError: the checkpoint does not belong to the ledger of this group.
            UnreadBatchError: Spark committed a batch that no task has read, and requests the next one.
        """
        return QueueStreamReader(schema, self._parsed(Direction.STREAM))

    def writer(self, schema: StructType, overwrite: bool) -> QueueWriter | DeadLetterWriter:  # noqa: FBT001 - Spark's
        """Return the writer of a batch, or of decisions if ``content`` is ``deadLetters``. Raises: as `schema`."""
        rejects = parse_options(self.options).content is Content.DEAD_LETTERS
        options = self._parsed(Direction.REJECTION if rejects else Direction.WRITE)
        refuse_overwriting(overwrite=overwrite)
        if rejects:
            return DeadLetterWriter(schema, options)
        _require_items(options)
        return QueueWriter(schema, options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueueStreamWriter:  # noqa: FBT001, N802 - Spark's
        """Return the writer of a stream. Raises: as `schema`."""
        options = self._parsed(Direction.SINK)
        refuse_overwriting(overwrite=overwrite)
        _require_items(options)
        origin = key_hash(json.dumps([sorted(self.options.items()), schema.json()]))
        return QueueStreamWriter(schema, options, origin)

    def _parsed(self, direction: Direction) -> Options:
        """Parse the options. Log a warning for each that has no effect: reads and writes often share their options."""
        options = parse_options(self.options)
        for unused in unused_options(self.options, direction):
            log.warning("queue %s: %s", options.queue, unused, extra={"queue": options.queue})
        return options


def refuse_overwriting(*, overwrite: bool) -> None:
    """Refuse the mode ``overwrite``, which would empty the queue first. Raises: InvalidOptionError."""
    if overwrite:
        msg = "a queue cannot be overwritten: use .mode('append'); to replace the messages, purge the queue first"
        raise InvalidOptionError(msg)


def _require_items(options: Options) -> None:
    """Refuse to write into another part of a queue. Raises: InvalidOptionError."""
    if options.content is not Content.ITEMS:
        msg = (
            f"content={options.content.value}: a write puts rows into a queue as messages; leave the option out. To "
            "reject messages of a stream, write their ids with content=deadLetters in the function of foreachBatch"
        )
        raise InvalidOptionError(msg)


def register(spark: SparkSession) -> None:
    """Register the format ``aiozkqueue`` in a Spark session that has not found it automatically."""
    spark.dataSource.register(AiozkqueueDataSource)
