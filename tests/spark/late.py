"""A driver whose write fails, and is aborted before one of its tasks begins.

``python -m tests.spark.late HOSTS ROOT FOLDER``. Spark lets the late task run, because the settings allow it a minute.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.errors import PySparkException

from aiozkqueue.spark import AiozkqueueDataSource
from aiozkqueue.spark.writing import QueueWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

#: Files: the write has been aborted; the late task has begun; the error of the late task.
DISCARDED, BEGUN, ENDED = "discarded", "begun", "ended"
#: Seconds after which a task continues without its signal.
PATIENCE = 60
ROWS = 100


class LateWriter(QueueWriter):
    """A writer whose first partition waits before it begins. The other partitions fail."""

    folder: Path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        context = TaskContext.get()
        assert context is not None
        if context.partitionId():
            _wait(self.folder / BEGUN)
            raise RuntimeError("a task that has failed")
        (self.folder / BEGUN).touch()
        _wait(self.folder / DISCARDED)
        error = "none"
        try:
            return super().write(iterator)
        except Exception as raised:
            error = repr(raised)
            raise
        finally:
            (self.folder / ENDED).write_text(error)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        super().abort(messages)
        (self.folder / DISCARDED).touch()


class LateDataSource(AiozkqueueDataSource):
    """The format."""

    @classmethod
    def name(cls) -> str:
        return "late"

    def writer(self, schema: StructType, overwrite: bool) -> QueueWriter:  # noqa: FBT001 - Spark's signature
        folder = Path(self.options.pop("folder"))
        writer = super().writer(schema, overwrite)
        assert isinstance(writer, QueueWriter)
        writer.__class__ = LateWriter
        assert isinstance(writer, LateWriter)
        writer.folder = folder
        return writer


def _wait(file: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def main(hosts: str, root: str, folder: Path) -> None:
    """Write, and wait for the late task."""
    from tests.spark.local import start  # noqa: PLC0415 - not for Spark's workers

    spark = start(folder, {"spark.python.task.killTimeout": f"{PATIENCE}s"}, cores=2)
    spark.dataSource.register(LateDataSource)
    rows = spark.range(0, ROWS, 1, 2).selectExpr("cast(id as string) as body").write.format("late").mode("append")
    options = {"hosts": hosts, "root": root, "txnAppId": "app", "txnVersion": "1", "folder": str(folder)}
    with suppress(PySparkException):
        rows.options(**options).save("orders")
    _wait(folder / ENDED)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
