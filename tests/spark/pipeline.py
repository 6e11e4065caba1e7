"""Rows go from files to a queue, through a stream to another queue, and to consumers, while all processes are killed.

``python -m tests.spark.pipeline [--rows 500000] [--seed 1]`` starts an ensemble of three servers, and a driver with its
own cluster of two executors with speculative execution. The driver runs two queries, and restarts a query that fails.
At random times, the driver with its cluster, an executor, the workers of the tasks, the process of a source, or a
server is killed. Consumers commit the messages that they take. The exit status is 1 if a row did not arrive, or arrived
twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

import aiozkqueue as zq

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from aiozkqueue.testing import EmbeddedEnsemble

ROOT = "/pipeline"
#: Rows per file.
FILE = 5_000
#: Messages per batch of the stream.
BATCH = "20000"
#: The probability that a task waits, and its wait in seconds. Spark then runs a second attempt.
SLOW, WAIT = 0.1, 4.0
#: Seconds for which a new driver is not killed, so that it can make progress.
START = 40.0
FAULTS = ("driver", "executor", "workers", "source", "server", "leader")


class Driver:
    """The process of the driver, its JVM, and the executors."""

    def __init__(self, hosts: str, folder: Path) -> None:
        self._hosts, self._folder = hosts, folder
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.ready = 0.0

    def start(self) -> None:
        """Start it, in a folder for the files of this run of Spark."""
        self.starts += 1
        self.ready = time.monotonic() + START
        own = self._folder / f"run-{self.starts}"
        own.mkdir()
        with (own / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.pipeline", "--drive", self._hosts, str(self._folder), str(own)],
                stdout=log,
                stderr=log,
                process_group=0,
            )

    @property
    def ended(self) -> bool:
        """Whether it was killed, or has ended because its cluster gave up after several executors had died."""
        return self._process is not None and self._process.poll() is not None

    def kill(self) -> None:
        """Kill all its processes."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def processes(self, part: str) -> list[psutil.Process]:
        """Return its processes that have this text in their command lines."""
        assert self._process is not None
        found: list[psutil.Process] = []
        with suppress(psutil.Error):
            for process in psutil.Process(self._process.pid).children(recursive=True):
                with suppress(psutil.Error):
                    if part in " ".join(process.cmdline()):
                        found.append(process)
        return found


class Pipeline:
    """One run."""

    def __init__(self, ensemble: EmbeddedEnsemble, folder: Path, rows: int, seed: int) -> None:
        self._ensemble, self._folder, self._rows = ensemble, folder, rows
        self._random = random.Random(seed)
        self._driver = Driver(ensemble.hosts, folder)
        self.faults: Counter[str] = Counter()
        self.seen: Counter[bytes] = Counter()
        self.uncommitted = 0

    async def run(self, deadline: float) -> None:
        """Run until all rows have arrived, or until the deadline."""
        await asyncio.to_thread(write_files, self._folder / "in", self._rows)
        self._driver.start()
        try:
            async with asyncio.timeout(deadline):
                consumers = [asyncio.ensure_future(self._consume()) for _ in range(2)]
                killer = asyncio.ensure_future(self._kill())
                while len(self.seen) < self._rows:
                    done, _ = await asyncio.wait({killer, *consumers}, timeout=5)
                    for task in done:
                        task.result()
                    if self._driver.ended:
                        self._driver.start()
                    say(f"{time.strftime('%X')} {len(self.seen):,} rows, {dict(self.faults)}")
                await asyncio.sleep(10)  # to notice rows that arrive twice
        except TimeoutError:
            say("some rows have not arrived in time")
        finally:
            killer.cancel()
            for task in consumers:
                task.cancel()
            await asyncio.gather(killer, *consumers, return_exceptions=True)
            await asyncio.to_thread(self._driver.kill)

    async def figures(self) -> dict[str, object]:
        """Return the figures of the run, with the messages that are left in the queues."""
        expected = {b"%d" % number for number in range(self._rows)}
        events = [file for file in self._folder.glob("run-*/events/**/*") if file.is_file()]
        async with zq.connect(self._ensemble.hosts, root=ROOT) as session:
            left = {name: await session.queue(name).size() for name in ("in", "out")}
            dead = {name: await session.queue(name).dead_letters.size() for name in ("in", "out")}
        return {
            "rows": self._rows,
            "lost": len(expected - self.seen.keys()),
            "doubled": sum(count - 1 for count in self.seen.values()),
            "unknown": len(self.seen.keys() - expected),
            "left": left,
            "dead": dead,
            "faults": dict(self.faults),
            "drivers": self._driver.starts,
            "drivers that ended by themselves": self._driver.starts - 1 - self.faults["driver"],
            "tried twice": sum(file.read_bytes().count(b'"Speculative":true') for file in events) // 2,
            "transactions not committed": self.uncommitted,
        }

    async def _consume(self) -> None:
        async with zq.connect(self._ensemble.hosts, root=ROOT, session_timeout=20) as session:
            out = session.queue("out")
            while True:
                try:
                    async with session.transaction() as tx:
                        messages = await tx.take_many(out, 200, timeout=5)
                except (zq.NotCommittedError, zq.ConnectionLostError):
                    self.uncommitted += 1
                else:
                    self.seen.update(message.body for message in messages)

    async def _kill(self) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(4, 12))
            fault = self._random.choice(FAULTS)
            if await getattr(self, f"_kill_{fault}")():
                self.faults[fault] += 1

    async def _kill_driver(self) -> bool:
        if time.monotonic() < self._driver.ready:
            return False
        await asyncio.to_thread(self._driver.kill)  # only `run` starts the next driver
        return True

    async def _kill_executor(self) -> bool:
        return self._kill_all(self._driver.processes("CoarseGrainedExecutorBackend")[:1])

    async def _kill_workers(self) -> bool:
        daemons = self._driver.processes("pyspark.daemon")
        return self._kill_all([daemon for daemon in daemons if any(daemon.ppid() == parent.pid for parent in daemons)])

    async def _kill_source(self) -> bool:
        return self._kill_all(self._driver.processes("python_streaming_source_runner")[:1])

    async def _kill_server(self) -> bool:
        node = self._random.choice(self._ensemble.nodes)
        await asyncio.to_thread(node.kill)
        await asyncio.sleep(self._random.uniform(1, 5))
        await asyncio.to_thread(node.start)
        return True

    async def _kill_leader(self) -> bool:
        leader = await asyncio.to_thread(self._ensemble.leader)
        await asyncio.to_thread(leader.kill)
        await asyncio.sleep(self._random.uniform(1, 5))
        await asyncio.to_thread(leader.start)
        return True

    @staticmethod
    def _kill_all(processes: list[psutil.Process]) -> bool:
        killed = False
        for process in processes:
            with suppress(psutil.Error):
                process.kill()
                killed = True
        return killed


def say(line: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def write_files(folder: Path, rows: int) -> None:
    """Write files with one number per line."""
    folder.mkdir()
    for first in range(0, rows, FILE):
        lines = "".join(f"{number}\n" for number in range(first, min(rows, first + FILE)))
        (folder / f"{first:09d}.txt").write_text(lines)


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on, in some tasks after a wait."""
    from pyspark import TaskContext  # noqa: PLC0415 - the parent process does not import Spark

    context = TaskContext.get()
    if context is not None and not context.attemptNumber() and random.random() < SLOW:
        time.sleep(WAIT)
    yield from batches


def drive(hosts: str, folder: Path, own: Path) -> None:
    """Run both queries until this process is killed."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - the parent process does not import Spark
    from pyspark.errors import PySparkException  # noqa: PLC0415 - the parent process does not import Spark

    from aiozkqueue.spark import register  # noqa: PLC0415 - imports Spark
    from tests.spark.speculating import cluster  # noqa: PLC0415 - imports Spark

    spark = cluster(own, cores=3)
    register(spark)
    options = {"hosts": hosts, "root": ROOT, "sessionTimeout": "20"}

    def into_queue() -> DataFrame:
        files = spark.readStream.option("maxFilesPerTrigger", 3).text(str(folder / "in"))
        return files.selectExpr("cast(value as binary) as body")

    def between_queues() -> DataFrame:
        stream = spark.readStream.format("aiozkqueue").options(**options, maxOffsetsPerTrigger=BATCH, minPartitions="3")
        return stream.schema("body binary").load("in")

    def start(frame: DataFrame, target: str) -> StreamingQuery:
        writer = frame.mapInArrow(slowly, "body binary").writeStream.format("aiozkqueue").options(**options)
        writer = writer.option("checkpointLocation", str(folder / f"checkpoint-{target}"))
        return writer.trigger(processingTime="0 seconds").start(target)

    queries: dict[str, StreamingQuery] = {}
    while True:
        for target, frame in (("in", into_queue), ("out", between_queues)):
            if target in queries and queries[target].isActive:
                continue
            try:
                if target in queries:
                    say(f"query to {target!r} ended: {str(queries[target].exception())[:2000]}")
                    spark.streams.resetTerminated()
                queries[target] = start(frame(), target)
            except (PySparkException, Py4JError) as error:  # the queue does not exist yet, or a process was killed
                say(f"query to {target!r} did not start: {str(error)[:2000]}")
        time.sleep(0.5)


def main() -> int:
    """Run, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3_600, help="when to give up")
    parser.add_argument("--keep", action="store_true", help="keep the logs of the drivers, and print their folder")
    parser.add_argument("--drive", nargs=3, metavar=("HOSTS", "FOLDER", "OWN"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive:
        hosts, folder, own = given.drive
        drive(hosts, Path(folder), Path(own))
        return 0
    from aiozkqueue.testing import EmbeddedEnsemble, ServerOptions  # noqa: PLC0415 - drivers start no servers
    from aiozkqueue.testing.spark import java_home  # noqa: PLC0415 - drivers get its value from their environment
    from tests.spark.local import environment  # noqa: PLC0415 - drivers get its value from their parent

    scratch = Path(tempfile.mkdtemp(prefix="pipeline-"))
    try:
        os.environ.update(environment(java_home(scratch)))
        with EmbeddedEnsemble(3, ServerOptions(heap=1024)) as ensemble:
            pipeline = Pipeline(ensemble, scratch, given.rows, given.seed)
            begun = time.monotonic()
            asyncio.run(pipeline.run(given.seconds))
            seconds = round(time.monotonic() - begun)
            figures: dict[str, Any] = {**asyncio.run(pipeline.figures()), "seconds": seconds}
    finally:
        if given.keep:
            say(str(scratch))
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    sys.stdout.write(f"{json.dumps(figures)}\n")
    wrong = figures["lost"] or figures["doubled"] or figures["unknown"] or any(figures["dead"].values())
    return bool(wrong or any(figures["left"].values()))


if __name__ == "__main__":
    sys.exit(main())
