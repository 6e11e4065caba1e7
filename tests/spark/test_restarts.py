"""Concurrent streams of a queue, and a stream that restarts with another group, checkpoint or schema."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

import aiozkqueue as zq
from tests.spark.streams import started
from tests.spark.test_batch import put
from tests.spark.test_stream import Files, left

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


class DownError(Exception):
    """The error of a sink that is down."""


def decoded(
    spark: SparkSession, options: Mapping[str, str], folder: Path, schema: str, *, down: bool = False, **more: str
) -> list[object]:
    """Return the rows of a stream until its queue is empty, or until its sink fails after it has received them."""
    rows: list[object] = []

    def sink(frame: object, _: int) -> None:
        rows.extend(row.n for row in frame.collect())  # type: ignore[attr-defined]
        if down:
            raise DownError

    stream = spark.readStream.format("aiozkqueue").options(**options, **more).schema(schema).load()
    writer = stream.writeStream.option("checkpointLocation", str(folder)).foreachBatch(sink)
    query = started(writer.trigger(availableNow=True).start)
    if not down:
        assert query.awaitTermination(240)
        return rows
    with pytest.raises(PySparkException, match="DownError"):
        query.awaitTermination(240)
    return rows


def dead(options: Mapping[str, str]) -> list[bytes]:
    async def look() -> list[bytes]:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            return [letter.body for letter in await session.queue("orders").dead_letters.peek(100)]

    return asyncio.run(look())


@pytest.mark.slow
def test_two_groups_share_a_queue_and_a_second_query_of_a_group_fences_the_first(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    numbers = [b"%d" % n for n in range(30)]
    put(options, *numbers)
    first_files, second_files = Files(spark, options, tmp_path / "one"), Files(spark, options, tmp_path / "other")
    query = first_files.start(once=False, group="a", maxOffsetsPerTrigger="10")
    try:
        second_files.drain(group="b", maxOffsetsPerTrigger="10")
        query.processAllAvailable()
        assert Counter([*first_files.bodies(), *second_files.bodies()]) == Counter(numbers)
        Files(spark, options, tmp_path / "second").drain(group="a", startingOffsets="earliest")
        with pytest.raises(PySparkException, match=r"ClaimLostError.*'a' has been taken over"):
            query.awaitTermination(240)
    finally:
        query.stop()
    assert left(options) == (0, 0, 0)


def test_a_new_checkpoint_reads_the_unfinished_batches_first(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    put(options, b'{"n": 1}', b'{"n": 2}')
    assert sorted(decoded(spark, options, tmp_path / "lost", "n int", down=True)) == [1, 2]  # type: ignore[type-var]
    put(options, b'{"n": 3}')
    assert left(options) == (3, 2, 1)
    rows = decoded(spark, options, tmp_path / "new", "n int", maxOffsetsPerTrigger="1", startingOffsets="earliest")
    assert (sorted(rows[:2]), rows[2:]) == ([1, 2], [3])  # type: ignore[type-var]
    assert left(options) == (0, 0, 0)


@pytest.mark.slow
def test_a_schema_changed_before_a_restart_applies_to_the_unfinished_batch_and_its_dead_letters(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    put(options, b'{"n": 1}', b'{"n": "one"}', b"no JSON")
    assert decoded(spark, options, tmp_path / "checkpoint", "n int", down=True, mode="DEADLETTER") == [1]
    assert (left(options), dead(options)) == (
        (3, 3, 1),
        [],
    )  # an undecodable message becomes a dead letter only when its batch is done
    with pytest.raises(PySparkException, match="does not decode"):
        decoded(spark, options, tmp_path / "checkpoint", "n string", mode="FAILFAST")
    assert decoded(spark, options, tmp_path / "checkpoint", "n string", mode="DEADLETTER") == ["one"]
    assert sorted(dead(options)) == [b"no JSON", b'{"n": 1}']
    assert left(options) == (0, 0, 0)
