"""Spark in local mode and the direct API: batch write and stream source by partitions, and memory by depth.

A stream takes seconds to start, so ``steady_rate`` is the rate of its batches alone. It uses Spark's own duration of
each batch, from the choice of its messages to the end of the sink. One JVM runs all cases, with a small warm-up before
each. The client's CPU is that of the JVM and its Python workers; the server's is ZooKeeper's. ``MiB`` is the resident
memory of all Spark processes at the end. ``driver_peak_MiB`` and ``task_peak_MiB`` are the peaks of the largest Python
process of the driver and of its tasks since Spark started, so shallower queues are measured first.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

import aiozkqueue as zq
from aiozkqueue.testing.spark import java_home

from .measure import BODY, Case, Sample, Stopwatch
from .ours import ROOT, opened, remove, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

    from .measure import Server

    #: The arguments are Spark, the options of a queue, and the number of messages.
    UnitOfWork = Callable[["Local", Mapping[str, str], int], Mapping[str, float]]

TOGETHER = 500
TASKS = 4
WARM = 1000
_names = (f"spark-{number}" for number in count())
_MIB = 2**20


class Local:
    """Spark, and its processes."""

    def __init__(self) -> None:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - takes a second

        self._folder = ExitStack()
        self.folder = Path(self._folder.enter_context(tempfile.TemporaryDirectory()))
        project = str(Path(__file__).parents[1])
        os.environ.update(
            JAVA_HOME=java_home(self.folder / "java"),
            PYTHONPATH=os.pathsep.join([project, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            PYSPARK_PYTHON=sys.executable,
            SPARK_LOCAL_IP="127.0.0.1",
        )
        before = set(descendants())
        builder = SparkSession.builder.master("local[2]").appName("aiozkqueue benchmarks")
        for name, value in {
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
            "spark.local.dir": str(self.folder),
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
        }.items():
            builder = builder.config(name, value)
        self.session = builder.getOrCreate()
        self.session.sparkContext.setLogLevel("ERROR")
        self._others = before  # for example, ZooKeeper

    def processes(self) -> list[psutil.Process]:
        """The JVM and its Python workers."""
        return [process for process in descendants() if process not in self._others]

    def memory(self) -> dict[str, float]:
        """Their resident memory, and the peaks of the largest Python processes of the driver and the tasks."""
        total, peaks = 0, {"driver_peak_MiB": 0.0, "task_peak_MiB": 0.0}
        for process in self.processes():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                total += process.memory_info().rss
                if "java" not in process.name():
                    kind = "task_peak_MiB" if "pyspark.worker" in process.cmdline() else "driver_peak_MiB"
                    peaks[kind] = max(peaks[kind], _peak(process.pid) / _MIB)
        return {"MiB": total / _MIB, **peaks}


def _peak(pid: int) -> int:
    """Return the peak of a process's resident memory, bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


class Times(NamedTuple):
    """The values of one process, as psutil returns them."""

    user: float
    system: float


class _Tree:
    """Spark's processes, treated as one."""

    def __init__(self, local: Local) -> None:
        self._local = local

    def cpu_times(self) -> Times:
        """The CPU that they and their ended children have used."""
        user = system = 0.0
        for process in self._local.processes():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                user += times.user + times.children_user
                system += times.system + times.children_system
        return Times(user, system)


def descendants() -> list[psutil.Process]:
    """Return the processes that this one has started, directly or not."""
    children: list[psutil.Process] = psutil.Process().children(recursive=True)
    return children


@cache
def spark() -> Local:
    """The Spark session of this process."""
    return Local()


def next_queue(server: Server) -> dict[str, str]:
    """Return Spark's options for a queue that does not exist yet."""
    return {"hosts": server.hosts, "root": ROOT, "queue": next(_names)}


def measured(server: Server, messages: int, work: UnitOfWork, *, depth: int = 0, bundle: int = 1) -> Sample:
    """Warm up and measure; with ``depth``, the queue already holds this many times as many messages.

    ``bundle`` is the maximum number of messages in one znode.
    """
    local = spark()
    try:
        for number in (WARM, messages):
            options = next_queue(server)
            asyncio.run(fill(options, number * depth, bundle))
            with Stopwatch(server, [_Tree(local)]) as watch:
                figures = work(local, options, number)
        return watch.sample(messages, **{**local.memory(), **figures})
    finally:
        remove(server)


async def fill(options: Mapping[str, str], messages: int, bundle: int, due: float | None = None) -> None:
    """Put messages, and one before them; ``due`` delays them until that time, in seconds since 1970."""
    async with zq.connect(options["hosts"], root=options["root"]) as session:
        queue = session.queue(options["queue"])
        await queue.configure(zq.QueueConfig(bundle=bundle))
        await queue.put(b"the first makes the queue")
        together = min(TOGETHER, max(1, messages))

        async def put() -> None:
            if due is None:
                await queue.put_many([BODY] * together)
            else:
                await queue.put_many([BODY] * together, delay=due - time.time())

        await spread(TASKS, messages // together, put)


def write(local: Local, options: Mapping[str, str], messages: int, *, partitions: int) -> Mapping[str, float]:
    """Write a data frame of this many rows."""
    from pyspark.sql import functions  # noqa: PLC0415 - takes a second

    frame = local.session.range(0, messages, 1, partitions).select(functions.lit(BODY).alias("body"))
    frame.write.format("aiozkqueue").mode("append").options(**options).save()
    return {}


def drain(
    local: Local, options: Mapping[str, str], messages: int, *, partitions: int, most: int | None = None
) -> Mapping[str, float]:
    """Take this many messages with a stream, in batches of ``most`` messages or of a quarter, and acknowledge them."""
    stream = (
        stream_of(local, options)
        .option("minPartitions", partitions)
        .option("maxOffsetsPerTrigger", most or max(1, messages // 4))
    )
    memory, steady = batches_of(local, stream, options["queue"], messages)
    return {"steady_rate": steady, **memory}


def stream_of(local: Local, options: Mapping[str, str]) -> DataStreamReader:
    """Return a stream of a queue."""
    return local.session.readStream.format("aiozkqueue").options(**options).schema("body binary")


def started(local: Local, stream: DataStreamReader, name: str) -> StreamingQuery:
    """Start a query that reads a stream and discards the rows."""
    writer = stream.load().writeStream.format("noop").option("checkpointLocation", str(local.folder / name))
    return writer.trigger(processingTime="0 seconds").start()


def batches_of(local: Local, stream: DataStreamReader, name: str, messages: int) -> tuple[Mapping[str, float], float]:
    """Run a stream until it has read this many messages; return the memory, and the rate of its batches alone."""
    query = started(local, stream, name)
    try:
        while sum(progress["numInputRows"] for progress in query.recentProgress) < messages:
            if not query.isActive:
                query.awaitTermination()  # raises the error that ended the query
            time.sleep(0.01)
        memory = local.memory()  # while the source still exists
    finally:
        query.stop()
    batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    seconds = sum(batch["durationMs"]["triggerExecution"] for batch in batches) / 1000
    return memory, sum(batch["numInputRows"] for batch in batches) / seconds


def read(
    local: Local,
    options: Mapping[str, str],
    messages: int,  # noqa: ARG001 - the signature of the other cases
    *,
    schema: str | None = "body binary",
) -> Mapping[str, float]:
    """Read all messages as a batch; without a schema, all columns."""
    reader = local.session.read.format("aiozkqueue").options(**options)
    frame = (reader if schema is None else reader.schema(schema)).load()
    frame.write.format("noop").mode("overwrite").save()
    return local.memory()


def take_directly(server: Server, messages: int) -> Sample:
    """Take messages with a consumer."""

    async def main() -> Sample:
        async with opened(server) as (_, queue):
            await spread(TASKS, messages // TOGETHER, lambda: queue.put_many([BODY] * TOGETHER))
            with Stopwatch(server) as watch:
                async with queue.consume(until_idle=0, prefetch=500) as deliveries:
                    async for _delivery in deliveries:
                        pass
            return watch.sample(messages)

    return asyncio.run(main())


def put_directly(server: Server, messages: int) -> Sample:
    """Put with the same concurrency as Spark's tasks."""

    async def main() -> Sample:
        async with opened(server) as (_, queue):
            with Stopwatch(server) as watch:
                await spread(TASKS, messages // TOGETHER, lambda: queue.put_many([BODY] * TOGETHER))
            return watch.sample(messages)

    return asyncio.run(main())


def _case(name: str, work: UnitOfWork, *, messages: int = 50_000, depth: int = 0, bundle: int = 1) -> Case:
    return Case(name, "spark", messages, partial(measured, work=work, depth=depth, bundle=bundle), rounds=2)


_large = partial(_case, messages=300_000, depth=1)

PARTITIONS = (1, 2, 4)
DEPTHS = (1, 10, 30)
CASES = [
    Case("aiozkqueue: put 500s", "spark", 50_000, put_directly, rounds=2),
    *(_case(f"Spark: write, {n} partitions", partial(write, partitions=n)) for n in PARTITIONS),
    Case("aiozkqueue: consume", "spark", 50_000, take_directly, rounds=2),
    *(_case(f"Spark: stream, {n} partitions", partial(drain, partitions=n), depth=1) for n in PARTITIONS),
    *(
        _case(
            f"Spark: stream of 10,000 out of {10_000 * depth:,}",
            partial(drain, partitions=2),
            messages=10_000,
            depth=depth,
        )
        for depth in DEPTHS
    ),
    *(_case(f"Spark: read of {10_000 * depth:,}", read, messages=10_000 * depth, depth=1) for depth in DEPTHS[:-1]),
    _large("Spark: write of 300,000", partial(write, partitions=2), depth=0),
    _large("Spark: read of 300,000, all columns", partial(read, schema=None)),
    _large("Spark: stream in batches of 20,000", partial(drain, partitions=2, most=20_000)),
    _large("Spark: stream in batches of 100,000", partial(drain, partitions=2, most=100_000)),
]
