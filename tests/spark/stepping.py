"""The format with a halt at each step of a micro-batch, where its driver is killed or waits as if it were dead.

Run as a program it is a separate driver: ``python -m tests.spark.stepping HOSTS FOLDER`` reads names from its input,
and for each drains a queue below the root of that name into another, from the checkpoint in a folder of that name. It
halts where the file `STEP` in there says, tells so by the file `WAITS`, and goes on when there is a file `GO`.
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

#: Where one step of a batch has ended and the next has not begun, in the order in which Spark takes them.
STEPS = (
    "before the offsets",  # the batch before it is in the commit log, and nothing of that has been acknowledged
    "behind the offsets",  # the batch is sealed, and not in the offset log
    "before the partitions",  # it is in the offset log
    "behind the preparation",  # the batch after it is in the ledger, not sealed, and Spark has not requested it
    "behind a task",  # rows are staged
    "before the sink's commit",  # all of them are
    "behind the sink's commit",  # they can be seen, and the batch is not in the commit log
)
STEP, WAITS, GO, ENDED = "step", "waits", "go", "ended"
#: Where Spark's Python processes find the folder.
FOLDER = "STEPPING_FOLDER"


def chosen(root: str) -> str:
    """Return the step at which a query halts."""
    return Path(os.environ[FOLDER], Path(root).name, STEP).read_text()


def halt(root: str, step: str) -> None:
    """Wait for a file, if this is the step."""
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
    """Start to drain ``orders`` into ``out``, two messages a batch."""
    stream = spark.readStream.format(form).options(**options, maxOffsetsPerTrigger="2").load("orders").select("body")
    writer = stream.writeStream.format(form).options(**options, checkpointLocation=str(folder / "checkpoint"))
    return started(lambda: writer.trigger(availableNow=True).start("out"))


def main(hosts: str, folder: Path) -> None:
    """Drain what is named, each by a separate query."""
    from tests.spark.local import start  # noqa: PLC0415 - not for Spark's workers

    os.environ[FOLDER] = str(folder)
    spark = start(folder, {}, cores=8)  # a task that waits keeps its core
    spark.dataSource.register(SteppingDataSource)
    for line in sys.stdin:
        root = line.strip()
        query = folder / Path(root).name
        running = pipe(spark, {"hosts": hosts, "root": root}, query, "stepping")
        Thread(target=tell_end, args=(running, query)).start()


def tell_end(running: StreamingQuery, folder: Path) -> None:
    """Write down how a query ends."""
    try:
        running.awaitTermination()
        outcome = "well"
    except PySparkException as error:
        outcome = str(error)
    (folder / f"{ENDED}.draft").write_text(outcome)
    (folder / f"{ENDED}.draft").rename(folder / ENDED)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
