"""A driver with speculative execution and its own cluster of two executors, which Spark treats as two hosts.

``python -m tests.spark.speculating HOSTS ROOT FOLDER`` puts `ROWS` rows into ``orders``. The first attempt of the first
task stores some of its rows, and then waits until another attempt has stored all of them. A file shows each attempt.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from aiozkqueue.spark import AiozkqueueDataSource
from aiozkqueue.spark.writing import QueueWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

ROWS = 400
#: Seconds after which the first attempt continues anyway; in that case there was no second attempt.
PATIENCE = 120
#: Files: an attempt of the first task, by its number, has begun; an attempt has stored all its rows.
TRIED, DONE = "tried-{}", "done"
#: The folder of Spark's event log.
EVENTS = "events"

_SETTINGS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
}


class SlowWriter(QueueWriter):
    """A writer that waits in the middle of the first attempt of the first task."""

    folder: Path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        context = TaskContext.get()
        assert context is not None
        if context.partitionId():
            return super().write(iterator)
        (self.folder / TRIED.format(context.attemptNumber())).touch()
        written = super().write(iterator if context.attemptNumber() else self._slowly(iterator))
        (self.folder / DONE).touch()
        return written

    def _slowly(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(iterator)
        deadline = time.monotonic() + PATIENCE
        while not (self.folder / DONE).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield from iterator


class SlowDataSource(AiozkqueueDataSource):
    """The format ``slow``."""

    folder: Path

    @classmethod
    def name(cls) -> str:
        return "slow"

    def writer(self, schema: StructType, overwrite: bool) -> QueueWriter:  # noqa: FBT001 - Spark's signature
        folder = Path(self.options.pop("folder"))
        writer = super().writer(schema, overwrite)
        assert isinstance(writer, QueueWriter)
        writer.__class__ = SlowWriter
        assert isinstance(writer, SlowWriter)
        writer.folder = folder
        return writer


def cluster(folder: Path, *, cores: int = 1) -> SparkSession:
    """Start a master and two workers in this JVM, since Spark runs a second attempt only on another host."""
    from pyspark import SparkContext  # noqa: PLC0415 - takes a second, and not for Spark's workers
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the same

    SparkContext._ensure_initialized()
    gateway: Any = SparkContext._gateway
    jvm = gateway.jvm
    conf, deploy = jvm.org.apache.spark.SparkConf(), jvm.org.apache.spark.deploy
    master = deploy.master.Master.startRpcEnvAndEndpoint("127.0.0.1", 0, 0, conf)._1().address().toSparkURL()
    masters = gateway.new_array(jvm.java.lang.String, 1)
    masters[0] = master
    no_file = getattr(getattr(jvm.scala, "None$"), "MODULE$")
    for number, host in enumerate(("127.0.0.1", "localhost")):
        work = str(folder / f"worker-{number}")
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            host, 0, 0, cores, 512, masters, work, jvm.scala.Some(number), conf, no_file
        )
    builder = SparkSession.builder.master(master).appName("aiozkqueue tests")
    events = folder / EVENTS
    events.mkdir()
    for name, value in {**_SETTINGS, "spark.eventLog.dir": events.as_uri()}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main(hosts: str, root: str, folder: str) -> None:
    """Write the rows, a hundred per task."""
    spark = cluster(Path(folder))
    spark.dataSource.register(SlowDataSource)
    rows = spark.range(0, ROWS, 1, ROWS // 100).selectExpr("cast(id as string) as body")
    options = {"hosts": hosts, "root": root, "rowsPerTransaction": "10", "folder": folder}
    rows.write.format("slow").mode("append").options(**options).save("orders")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
