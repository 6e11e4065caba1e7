"""A stream into a queue puts each row once, despite retries."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

import aiozkqueue as zq
from tests.spark.test_batch import drained, state

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


def pour(spark: SparkSession, options: Mapping[str, str], folder: Path, **more: str) -> None:
    """Put every line of the folder's files that has not been put yet, with one batch per file."""
    lines = spark.readStream.option("maxFilesPerTrigger", "1").text(str(folder / "in"))
    writer = lines.withColumnRenamed("value", "body").writeStream.format("aiozkqueue").options(**options, **more)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    writer.start().awaitTermination(120)


def bring(folder: Path, name: str, *numbers: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / name).write_text("".join(f"{n}\n" for n in numbers))


def test_each_row_is_put_once_even_after_a_restart_of_the_query(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    bring(tmp_path, "a", *range(1000))
    pour(spark, options, tmp_path)
    bring(tmp_path, "b", *range(1000, 1500))
    pour(spark, options, tmp_path)
    assert Counter(drained(options)) == Counter(b"%d" % n for n in range(1500))
    (tmp_path / "checkpoint").rename(tmp_path / "before")  # a new run is another writer, and puts all rows again
    pour(spark, options, tmp_path)
    assert len(drained(options)) == 1500


def test_replaying_a_batch_whose_rows_were_taken_puts_nothing(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    bring(tmp_path, "a", *range(1000))
    pour(spark, options, tmp_path)
    assert len(drained(options)) == 1000
    for entry in (tmp_path / "checkpoint" / "commits").iterdir():
        entry.unlink()  # as if the driver had been killed before it recorded that the batch is done
    bring(tmp_path, "b", 1000)
    pour(spark, options, tmp_path)
    assert drained(options) == [b"1000"]


def test_a_batch_that_failed_halfway_shows_and_leaves_no_row_before_its_retry(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    bring(tmp_path, "a", *range(1000))
    limited = {**options, "rowsPerTransaction": "100"}

    async def limit(size: int) -> None:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            await session.queue("orders").configure(zq.QueueConfig(max_size=size))

    asyncio.run(limit(350))
    with pytest.raises(PySparkException, match="QueueFullError"):
        pour(spark, limited, tmp_path, putTimeout="0")
    assert drained(options) == []
    assert state(options) == (0, 0)
    asyncio.run(limit(100_000))
    pour(spark, limited, tmp_path)
    assert Counter(drained(options)) == Counter(b"%d" % n for n in range(1000))
    assert state(options) == (0, 0)
