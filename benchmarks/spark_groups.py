"""Streams of several groups on one queue, with a cluster and an ensemble: ``python -m benchmarks.spark_groups``.

Each group is a query with a separate driver process and ledger. All take from one queue, in a Spark cluster of four
executors, which are processes of this machine, and from an ensemble of three servers. The queue is paused until all
queries run, so the figures do not contain their start. The rate counts from the start of the first batch to the end of
the last. The figures show what one driver uses of a
core, and what the servers use, from which ``docs/spark/tuning.md`` extrapolates.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from datetime import datetime
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psutil

import aiozkqueue as zq
from aiozkqueue.testing import EmbeddedEnsemble, ServerOptions
from aiozkqueue.testing.spark import java_home

from .measure import BODY, Server
from .on_spark import TOGETHER, descendants
from .ours import ROOT, spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: Four executors with one core each, in separate processes.
CLUSTER: Final = "local-cluster[4,1,1024]"
EXECUTORS: Final = 4
WARM: Final = 2000
#: MiB of heap of each server.
HEAP: Final = 1024
_names = (f"groups-{number}" for number in count())
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "1g",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC",
}


class Used(NamedTuple):
    """Seconds of CPU."""

    sources: float
    """Seconds of the drivers' Python processes, which prepare and acknowledge the batches."""
    tasks: float
    """Seconds of the tasks' Python processes."""
    spark: float
    """Seconds of the JVMs."""
    servers: float

    def since(self, before: Used) -> Used:
        """Return the use since another reading."""
        return Used(*(after - earlier for after, earlier in zip(self, before, strict=True)))


class Figures(NamedTuple):
    """One measurement."""

    groups: int
    rate: float
    """Messages per second."""
    used: Used
    """CPU time, microseconds per message."""
    load: float
    """The load average of the minute before the measurement."""


def start(folder: Path, cluster: str) -> SparkSession:
    """Start Spark; its processes find this project."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - takes a second

    project = str(Path(__file__).parents[1])
    path = os.pathsep.join([project, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    os.environ.update(
        JAVA_HOME=java_home(folder / "java"),
        PYTHONPATH=path,
        PYSPARK_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
        SPARK_WORKER_DIR=str(folder / "work"),
    )
    settings = {
        **_SETTINGS,
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.executorEnv.PYTHONPATH": path,
    }
    builder = SparkSession.builder.master(cluster).appName("aiozkqueue groups")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def measure(
    spark: SparkSession, server: Server, folder: Path, *, groups: int, messages: int, most: int, bundle: int
) -> Figures:
    """Fill a queue, and empty it with a query for each group."""
    options = {"hosts": server.hosts, "root": ROOT, "queue": next(_names)}
    asyncio.run(_fill(options, messages, bundle))
    load = psutil.getloadavg()[0]
    queries = [_start(spark, options, folder, f"g{n}", groups=groups, most=most) for n in range(groups)]
    try:
        while not all(query.recentProgress for query in queries):  # the first has no messages
            time.sleep(0.05)
        before = _used(server)
        asyncio.run(_resume(options))
        while sum(_rows(query) for query in queries) < messages:
            for query in queries:
                if not query.isActive:
                    query.awaitTermination()  # raises the error that ended it
            time.sleep(0.05)
        used = _used(server).since(before)
    finally:
        for query in queries:
            query.stop()
    batches = [progress for query in queries for progress in query.recentProgress if progress["numInputRows"]]
    began = min(_moment(batch) for batch in batches)
    ended = max(_moment(batch) + batch["durationMs"]["triggerExecution"] / 1000 for batch in batches)
    each = Used(*(1e6 * seconds / messages for seconds in used))
    return Figures(groups, messages / (ended - began), each, load)


def _start(
    spark: SparkSession, options: Mapping[str, str], folder: Path, group: str, *, groups: int, most: int
) -> StreamingQuery:
    stream = spark.readStream.format("aiozkqueue").options(**options, group=group).schema("body binary")
    stream = stream.option("maxOffsetsPerTrigger", most).option("minPartitions", max(1, EXECUTORS // groups))
    writer = stream.load().writeStream.format("noop").queryName(f"{options['queue']}-{group}")
    writer = writer.option("checkpointLocation", str(folder / options["queue"] / group))
    return writer.trigger(processingTime="0 seconds").start()


def _rows(query: StreamingQuery) -> int:
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def _moment(progress: Any) -> float:  # noqa: ANN401 - Spark's progress has many types of fields
    return datetime.fromisoformat(progress["timestamp"]).timestamp()


async def _resume(options: Mapping[str, str]) -> None:
    async with zq.connect(options["hosts"], root=options["root"]) as session:
        await session.queue(options["queue"]).configure(zq.QueueConfig(paused=False))


async def _fill(options: Mapping[str, str], messages: int, bundle: int) -> None:
    async with zq.connect(options["hosts"], root=options["root"]) as session:
        queue = session.queue(options["queue"])
        await queue.configure(zq.QueueConfig(bundle=bundle, paused=True))
        await spread(4, messages // TOGETHER, lambda: queue.put_many([BODY] * TOGETHER))


def _used(server: Server) -> Used:
    sources = tasks = spark = 0.0
    servers = {process.pid for process in server.processes}
    for descendant in descendants():
        if descendant.pid in servers:
            continue
        try:
            times, command = descendant.cpu_times(), " ".join(descendant.cmdline())
        except psutil.NoSuchProcess:
            continue
        seconds = times.user + times.system
        if "java" in descendant.name():
            spark += seconds
        elif "python_streaming_source_runner" in command:
            sources += seconds
        else:
            tasks += seconds + times.children_user + times.children_system  # workers end when they are idle
    return Used(sources, tasks, spark, server.cpu())


def medians(found: Sequence[Figures]) -> Figures:
    """Return the median of each figure for one number of groups."""
    used = Used(*(median(values) for values in zip(*(figures.used for figures in found), strict=True)))
    return Figures(found[0].groups, median(figures.rate for figures in found), used, max(one.load for one in found))


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--most", type=int, default=50_000, help="maxOffsetsPerTrigger (default: 50,000)")
    parser.add_argument("--bundle", type=int, default=64, help="maximum number of messages in a znode (default: 64)")
    parser.add_argument("--rounds", type=int, default=3, help="show the medians of this many rounds (default: 3)")
    parser.add_argument("--cluster", default=CLUSTER)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    found: dict[int, list[Figures]] = {groups: [] for groups in options.groups}
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch,
        EmbeddedEnsemble(3, ServerOptions(heap=HEAP)) as ensemble,
    ):
        server, folder = Server.of(ensemble), Path(scratch)
        spark = start(folder, options.cluster)
        try:
            for number in range(options.rounds + 1):
                for groups in options.groups:
                    messages = options.messages if number else WARM * groups
                    figures = measure(
                        spark,
                        server,
                        folder,
                        groups=groups,
                        messages=messages,
                        most=min(options.most, messages // groups),
                        bundle=options.bundle,
                    )
                    if number:
                        found[groups].append(figures)
        finally:
            spark.stop()
    results = [medians(figures) for figures in found.values()]
    if options.json:
        print(json.dumps([{**result._asdict(), "used": result.used._asdict()} for result in results]))
        return
    print(f"{'groups':>6} {'messages/s':>11} {'sources':>8} {'tasks':>6} {'spark':>6} {'servers':>8} {'load':>5}")
    for one in results:
        used = one.used
        print(
            f"{one.groups:6} {one.rate:11,.0f} {used.sources:8.1f} {used.tasks:6.1f} {used.spark:6.1f} "
            f"{used.servers:8.1f} {one.load:5.1f}"
        )
    print("sources, tasks, spark and servers: microseconds of CPU per message")


if __name__ == "__main__":
    main()
