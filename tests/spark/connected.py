"""A client of Spark Connect: ``python -m tests.spark.connected HOSTS ROOT FOLDER``, with a separate local server.

It loads rows, copies them with a stream, unloads them, and moves the history to files. It prints the results.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession, functions

from aiozkqueue.spark.audit import move, report
from aiozkqueue.spark.transfer import load, unload

ROWS = 100


def main(hosts: str, root: str, folder: str) -> None:
    """Use each part of the package."""
    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse").getOrCreate()
    options, figures = {"hosts": hosts, "root": root}, list[str]()
    rows = spark.range(ROWS).select(functions.col("id").cast("string").alias("body"))
    rows.write.format("aiozkqueue").mode("append").options(**options).save("first")
    stream = spark.readStream.format("aiozkqueue").options(**options).load("first").select("body")
    copy = stream.writeStream.format("aiozkqueue").options(**options).trigger(availableNow=True)
    copy.option("checkpointLocation", f"{folder}/checkpoint").start("second").awaitTermination()
    figures.append(f"{spark.read.format('aiozkqueue').options(**options).load('second').count()} copied")
    for _ in range(2):  # the second run finds the folder of the first
        done = unload(spark, f"{folder}/unloaded", {**options, "queue": "second", "maxOffsetsPerTrigger": "60"})
        figures.append(f"{done.messages} unloaded")
    figures.append(f"{spark.read.parquet(f'{folder}/unloaded').select('body').distinct().count()} in files")
    figures.append(f"{load(spark, [f'{folder}/unloaded'], {**options, 'queue': 'third'})} loaded")
    for _ in range(2):
        figures.append(f"{move(spark, f'{folder}/audit', options).records} records")
    figures.append(f"{report(spark, f'{folder}/audit').queues['second'].ended} ended")
    spark.stop()
    sys.stdout.write("\n".join(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
