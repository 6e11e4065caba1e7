"""The format with a halt at each step of a micro-batch: there its driver is killed, or waits as if it were dead.

Run as a program it is a driver of its own: ``python -m tests.spark.stepping HOSTS ROOT FOLDER`` drains one queue into
another, from the checkpoint in the folder.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiozkqueue.spark import AiozkqueueDataSource
from aiozkqueue.spark.sink import QueueStreamWriter
from aiozkqueue.spark.streaming import QueueStreamReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

#: Where one step of a batch has ended and the next has not begun, in the order in which Spark takes them. Between the
#: offset log and the first row of a task (commit of the batch before, partitions, reading) nothing is written anywhere.
STEPS = (
    "before the offsets",  # the batch before it is in the commit log, and nothing of that has been acknowledged
    "behind the offsets",  # the batch is sealed, and not in the offset log
    "before the partitions",  # it is in the offset log
    "behind a task",  # rows are staged
    "before the sink's commit",  # all of them are
    "behind the sink's commit",  # they can be seen, and the batch is not in the commit log
)
#: Where the process group of the driver, the step, and a file to wait for are told.
DRIVER, STEP, GO = "STEPPING_DRIVER", "STEPPING_STEP", "STEPPING_GO"


def halt(step: str) -> None:
    """Kill the driver, or wait for a file, if this is the step."""
    if os.environ.get(STEP) != step:
        return
    go = os.environ.get(GO)
    if not go:
        os.killpg(int(os.environ[DRIVER]), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        Path(f"{go}.waits").touch()
        while not Path(go).exists():
            time.sleep(0.05)


class Reader(QueueStreamReader):
    """Halts at each step of the source."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        if start["seq"] >= 0:
            halt("before the offsets")
        offset = super().latestOffset(start, limit)
        halt("behind the offsets")
        return offset

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Any:
        halt("before the partitions")
        return super().partitions(start, end)


class Writer(QueueStreamWriter):
    """Halts at each step of the sink."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        written = super().write(iterator)
        halt("behind a task")
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        halt("before the sink's commit")
        super().commit(messages, batchId)
        halt("behind the sink's commit")


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


def main(hosts: str, root: str, folder: str) -> None:
    """Drain ``orders`` into ``out``, two messages a batch."""
    from tests.spark.local import start  # noqa: PLC0415 - not for Spark's workers

    os.environ[DRIVER] = str(os.getpgrp())
    spark = start(Path(folder), {})
    spark.dataSource.register(SteppingDataSource)
    pipe(spark, {"hosts": hosts, "root": root}, folder, "stepping")


def pipe(spark: Any, options: dict[str, str], folder: str, form: str) -> None:
    """Drain one queue into the other."""
    stream = spark.readStream.format(form).options(**options, maxOffsetsPerTrigger="2").load("orders").select("body")
    writer = stream.writeStream.format(form).options(**options, checkpointLocation=f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start("out").awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
