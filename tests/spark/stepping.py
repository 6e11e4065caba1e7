"""A data source that halts at a step of a micro-batch, so that its driver can be killed or appear dead.

As a program it is a separate driver: ``python -m tests.spark.stepping HOSTS FOLDER`` reads names from its input. For
each name, it drains a queue below the root of that name into another queue, with the checkpoint in the folder of that
name. It halts at the step in the file `STEP` of that folder, creates the file `WAITS`, and continues when a file `GO`
exists.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from aiozkqueue.spark import AiozkqueueDataSource
from aiozkqueue.spark.sink import QueueStreamWriter
from aiozkqueue.spark.streaming import QueueStreamReader
from tests.spark.streams import started

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

#: The moments between two steps of a batch, in Spark's order.
STEPS = (
    "before the offsets",  # the batch before it is in the commit log, and is not acknowledged yet
    "behind the offsets",  # the batch is sealed, and not in the offset log
    "before the partitions",  # it is in the offset log
    "behind the preparation",  # the batch after it is in the ledger, not sealed, and Spark has not requested it
    "behind a task",  # rows are staged
    "before the sink's commit",  # all rows are staged
    "behind the sink's commit",  # the rows are visible, and the batch is not in the commit log
)
STEP, WAITS, GO, ENDED = "step", "waits", "go", "ended"
#: The environment variable that names the folder to Spark's Python processes.
FOLDER = "STEPPING_FOLDER"


def chosen(root: str) -> str:
    """Return the step at which a query halts."""
    return Path(os.environ[FOLDER], Path(root).name, STEP).read_text()


def halt(root: str, step: str) -> None:
    """Wait for the file `GO`, if this is the chosen step."""
    query = Path(os.environ[FOLDER], Path(root).name)
    if chosen(root) == step:
        (query / WAITS).touch()
        while not (query / GO).exists():
            time.sleep(0.05)


class Reader(QueueStreamReader):
    """Halts at each step of the source."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        if start["seq"] >= 0:
            halt(self._options.root, "before the offsets")
        offset = super().latestOffset(start, limit)
        halt(self._options.root, "behind the offsets")
        return offset

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Any:
        halt(self._options.root, "before the partitions")
        shares = super().partitions(start, end)
        if chosen(self._options.root) == "behind the preparation":
            self._join()
            halt(self._options.root, "behind the preparation")
        return shares


class Writer(QueueStreamWriter):
    """Halts at each step of the sink."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        written = super().write(iterator)
        halt(self._options.root, "behind a task")
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        halt(self._options.root, "before the sink's commit")
        super().commit(messages, batchId)
        halt(self._options.root, "behind the sink's commit")


class SteppingDataSource(AiozkqueueDataSource):
    """The format ``stepping``."""

    @classmethod
    def name(cls) -> str:
        return "stepping"

    def streamReader(self, schema: StructType) -> QueueStreamReader:  # noqa: N802 - Spark's name
        reader = super().streamReader(schema)
        reader.__class__ = Reader
        return reader

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueueStreamWriter:  # noqa: FBT001, N802 - Spark's
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = Writer
        return writer


def pipe(spark: SparkSession, options: Mapping[str, str], folder: Path, form: str) -> StreamingQuery:
    """Start to drain ``orders`` into ``out``, with two messages per batch."""
    stream = spark.readStream.format(form).options(**options, maxOffsetsPerTrigger="2").load("orders").select("body")
    writer = stream.writeStream.format(form).options(**options, checkpointLocation=str(folder / "checkpoint"))
    return started(lambda: writer.trigger(availableNow=True).start("out"))


def main(hosts: str, folder: Path) -> None:
    """Drain the named queues, each with a separate query."""
    from tests.spark.local import start  # noqa: PLC0415 - not for Spark's workers

    os.environ[FOLDER] = str(folder)
    spark = start(folder, {}, cores=8)  # a task that waits keeps its core
    spark.dataSource.register(SteppingDataSource)
    for line in sys.stdin:
        root = line.strip()
        query = folder / Path(root).name
        running = pipe(spark, {"hosts": hosts, "root": root}, query, "stepping")
        Thread(target=record_end, args=(running, query)).start()


def record_end(running: StreamingQuery, folder: Path) -> None:
    """Record how a query ends."""
    try:
        running.awaitTermination()
        outcome = "well"
    except PySparkException as error:
        outcome = str(error)
    (folder / f"{ENDED}.draft").write_text(outcome)
    (folder / f"{ENDED}.draft").rename(folder / ENDED)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
