"""Streams that fail, or are killed or stopped, while their checkpoint, group, queue, root and folder change at random.

``python -m tests.spark.soak [--seconds 300] [--seed 1] [--hosts H]`` reports where each message is afterwards. A query
may be refused with an error. A message that is in no folder, queue or dead letter is lost, and then the exit status is
1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from kazoo.client import KazooClient
from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import functions
from pyspark.sql.types import BinaryType

import aiozkqueue as zq
from aiozkqueue.errors import NotFoundError
from tests.spark.processes import children
from tests.spark.streams import started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: A message that begins with this always fails its query.
POISON = b"poison"
#: The body of a message, at the end of the data of its znode.
_BODY = re.compile(rb"(?:poison-)?[0-9]+\Z")
_RAISED = re.compile(r"(aiozkqueue\.errors\.\w+|ValueError): ")


@dataclass(frozen=True)
class Pipeline:
    """The settings with which a query is started."""

    root: int
    queue: str
    group: str
    checkpoint: int
    folder: int


@dataclass
class Tally:
    """The counts of the events so far."""

    put: set[bytes] = field(default_factory=set[bytes])
    rounds: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    ended: Counter[str] = field(default_factory=Counter[str])
    """The ends of queries: without an error, stopped, or with the name of an error."""
    lost: set[bytes] = field(default_factory=set[bytes])
    doubled: int = 0
    written: int = 0
    left: int = 0
    dead: int = 0
    untakeable: set[bytes] = field(default_factory=set[bytes])
    """Stored messages that no consumer gets after all ledgers have been released."""


class Soak:
    """One run."""

    def __init__(self, spark: SparkSession, hosts: str, root: str, folder: Path, seed: int) -> None:
        self._spark = spark
        self._hosts = hosts
        self._root = root
        self._folder = folder
        self._random = random.Random(seed)
        self._pipeline = Pipeline(0, "orders", "spark", 0, 0)
        self.tally = Tally()

    def round(self) -> None:
        """Put some messages, change a setting, and run a query, with or without a fault."""
        chance, tally = self._random, self.tally
        tally.rounds += 1
        if chance.random() < 0.4:
            self._change()
        pipeline = self._pipeline
        self._put(pipeline, chance.randint(3, 25))
        more = {"maxOffsetsPerTrigger": str(chance.randint(2, 12)), "minPartitions": str(chance.randint(1, 3))}
        if chance.random() < 0.7:
            more["startingOffsets"] = "earliest"
        if chance.random() < 0.6:
            more["failOnDataLoss"] = "false"
        if chance.random() < 0.5:
            more["maxBatchAttempts"] = str(chance.randint(1, 2))
        fault = chance.choice(["none", "none", "row", "source", "workers", "stop", "stop"])
        tally.faults[fault] += 1
        tally.ended[self._run(pipeline, more, fault)] += 1

    def settle(self) -> Tally:
        """Find each message."""
        tally = self.tally
        found: Counter[bytes] = Counter()
        for folder in sorted(self._folder.glob("out-*")):
            found.update(_committed(folder))
        tally.written = sum(found.values())
        left, dead = self._stored("items"), self._stored("dlq")
        tally.left, tally.dead = len(left), len(dead)
        found.update([*left, *dead])
        tally.untakeable = {*left, *dead} - asyncio.run(self._drain())
        tally.lost = tally.put - found.keys()
        tally.doubled = sum(count - 1 for count in found.values())
        return tally

    def _change(self) -> None:
        chance, tally = self._random, self.tally
        what = chance.choice(["root", "queue", "group", "checkpoint", "folder", "back", "forget", "release", "all"])
        tally.faults[f"changed: {what}"] += 1
        now = self._pipeline
        checkpoint, copy = self._at("checkpoint", now.checkpoint), self._at("copy", now.checkpoint)
        if what == "back":  # restore an old copy of the checkpoint, and make the next one
            if copy.exists():
                shutil.rmtree(checkpoint, ignore_errors=True)
                shutil.copytree(copy, checkpoint)
            elif checkpoint.exists():
                shutil.copytree(checkpoint, copy)
        elif what == "forget":
            shutil.rmtree(checkpoint, ignore_errors=True)
        elif what == "release":
            asyncio.run(self._release(now))
        other = Pipeline(
            chance.randrange(2),
            chance.choice(["orders", "invoices"]),
            chance.choice(["spark", "other"]),
            chance.randrange(4),
            chance.randrange(4),
        )
        if what == "all":
            self._pipeline = other
        elif what in {"root", "queue", "group", "checkpoint", "folder"}:
            self._pipeline = replace(now, **{what: getattr(other, what)})

    def _run(self, pipeline: Pipeline, more: dict[str, str], fault: str) -> str:
        chance = self._random
        flaky = chance.randrange(1 << 30) if fault == "row" else None

        def checked(body: bytes) -> bytes:
            unlucky = flaky is not None and random.Random(f"{flaky} {body!r}").random() < 0.1
            if unlucky or body.startswith(POISON):
                msg = "this row cannot be handled"
                raise ValueError(msg)
            return body

        options = {"hosts": self._hosts, "root": f"{self._root}/r{pipeline.root}", "group": pipeline.group, **more}
        stream = self._spark.readStream.format("aiozkqueue").options(**options).load(pipeline.queue)
        rows = stream.select(
            functions.udf(lambda body: checked(bytes(body)), BinaryType())("body").alias("body")
        ).writeStream.format("parquet")
        rows = rows.option("checkpointLocation", str(self._at("checkpoint", pipeline.checkpoint)))
        rows = rows.trigger(processingTime="0 seconds") if fault == "stop" else rows.trigger(availableNow=True)
        killing: threading.Thread | None = None
        try:
            query = started(lambda: rows.start(str(self._at("out", pipeline.folder))))
            if fault in {"source", "workers"}:
                killing = threading.Thread(target=self._kill_processes, args=(query, fault, 2 * chance.random()))
                killing.start()
            ended = query.awaitTermination(chance.randint(1, 5) if fault == "stop" else 180)
            query.stop()
            if not ended and fault != "stop":
                return "did not end"
        except PySparkException as error:
            raised = _RAISED.search(str(error))
            return "killed" if raised is None else raised[1].rpartition(".")[2]
        finally:
            if killing is not None:
                killing.join()
        return "well" if ended else "stopped"

    def _kill_processes(self, query: StreamingQuery, fault: str, delay: float) -> None:
        """Kill the Python processes of the query: the process of its source, or those of its tasks.

        The daemon that forks the tasks' processes is spared. Other tests share its Spark, and Spark fails with a broken
        pipe when it asks a killed daemon to end a process.
        """
        time.sleep(delay)
        gateway: Any = self._spark.sparkContext._gateway
        jvm = int(gateway.jvm.java.lang.ProcessHandle.current().pid())
        if not query.isActive:
            return
        processes = children(jvm)
        if fault == "source":
            struck = [process for process, command in processes.items() if "python_streaming_source_runner" in command]
        else:
            daemons = [process for process, command in processes.items() if "pyspark.daemon\0pyspark.worker" in command]
            struck = [process for daemon in daemons for process in children(daemon)]
        for process in struck:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)

    def _at(self, what: str, number: int) -> Path:
        return self._folder / f"{what}-{number}"

    def _put(self, pipeline: Pipeline, count: int) -> None:
        first = len(self.tally.put)
        bodies = [
            b"%s%d" % (POISON + b"-" if self._random.random() < 0.01 else b"", number)
            for number in range(first, first + count)
        ]
        self.tally.put.update(bodies)

        async def put() -> None:
            async with zq.connect(self._hosts, root=f"{self._root}/r{pipeline.root}") as session:
                await session.queue(pipeline.queue).put_many(bodies)

        asyncio.run(put())

    async def _release(self, pipeline: Pipeline) -> None:
        async with zq.connect(self._hosts, root=f"{self._root}/r{pipeline.root}") as session:
            with suppress(NotFoundError):
                await session.queue(pipeline.queue).admin.release_ledger(pipeline.group)

    def _stored(self, folder: str) -> list[bytes]:
        """Return the bodies stored in the queues, as kazoo reads them."""
        client = KazooClient(self._hosts)
        client.start(60)
        try:
            found: list[bytes] = []
            for root in client.get_children(self._root) or ():
                for queue in ("orders", "invoices"):
                    path = f"{self._root}/{root}/{queue}/{folder}"
                    names = client.get_children(path) if client.exists(path) else None
                    found += [_BODY.findall(client.get(f"{path}/{name}")[0])[0] for name in names or ()]
            return found
        finally:
            client.stop()
            client.close()

    async def _drain(self) -> set[bytes]:
        """Release all ledgers, and return the bodies of all messages and dead letters."""
        found: set[bytes] = set()
        for root in range(2):
            async with zq.connect(self._hosts, root=f"{self._root}/r{root}") as session:
                for name in await session.queues():
                    queue = session.queue(name)
                    for ledger in await queue.admin.ledgers():
                        await queue.admin.release_ledger(ledger.group)
                    async with queue.consume(until_idle=0, prefetch=200) as deliveries:
                        found |= {delivery.body async for delivery in deliveries}
                    found |= {letter.body for letter in await queue.dead_letters.peek(100_000)}
        return found


def _committed(folder: Path) -> list[bytes]:
    """Return the contents of the batches in a folder, which Spark cannot read if batch numbers are missing."""
    known: set[str] = set()
    for batch in (folder / "_spark_metadata").glob("[0-9]*"):
        for line in batch.read_text().splitlines()[1:]:
            known.add(unquote(urlsplit(json.loads(line)["path"]).path))
    tables = [parquet.read_table(path, columns=["body"]) for path in sorted(known)]
    return [body for table in tables for body in table["body"].to_pylist()]


def main() -> int:
    """Run for a time, and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hosts", default="")
    given = parser.parse_args()
    from aiozkqueue.testing import EmbeddedZooKeeper  # noqa: PLC0415 - a server is only needed without --hosts
    from aiozkqueue.testing.spark import java_home  # noqa: PLC0415 - the same
    from tests.spark.local import environment, start  # noqa: PLC0415 - the same

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hosts = given.hosts or stack.enter_context(EmbeddedZooKeeper()).hosts
        os.environ.update(environment(java_home(folder)))
        spark = start(folder, {}, cores=2)
        stack.callback(spark.stop)
        soak = Soak(spark, hosts, f"/soak-{os.getpid()}", folder, given.seed)
        deadline = time.monotonic() + given.seconds
        while time.monotonic() < deadline:
            soak.round()
        tally = soak.settle()
    sys.stdout.write(
        f"{len(tally.put)} messages, {tally.rounds} queries\nfaults: {dict(tally.faults)}\nended: {dict(tally.ended)}\n"
        f"written {tally.written}, dead letters {tally.dead}, left {tally.left}, doubled {tally.doubled}\n"
        f"lost {len(tally.lost)}: {sorted(tally.lost)[:20]}\n"
        f"cannot be taken {len(tally.untakeable)}: {sorted(tally.untakeable)[:20]}\n"
    )
    return bool(tally.lost or tally.untakeable)


if __name__ == "__main__":
    sys.exit(main())
