"""Writes with `txnAppId` and `txnVersion`: each version is written once, as with Delta."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions

import aiozkqueue as zq
from tests.spark.streams import started
from tests.spark.test_batch import drained, numbers, state, write

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)


def of(version: int, app: str = "app") -> dict[str, str]:
    return {"txnAppId": app, "txnVersion": str(version)}


def pending(options: Mapping[str, str]) -> int:
    """Return the number of incomplete writes."""

    async def look() -> int:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            return len(await session.queue(options["queue"]).admin.unfinished())

    return asyncio.run(look())


@pytest.mark.slow
def test_a_write_whose_version_is_not_newer_is_skipped_even_after_its_rows_were_taken(
    spark: SparkSession, options: dict[str, str]
) -> None:
    write(numbers(spark, 3), options, **of(7))
    write(numbers(spark, 3), options, **of(7))
    assert sorted(drained(options)) == [b"0", b"1", b"2"]
    write(numbers(spark, 3), options, **of(7))
    write(numbers(spark, 3), options, **of(6))
    assert drained(options) == []
    write(numbers(spark, 2), options, **of(9))
    write(numbers(spark, 1), options, **of(9, "another"))
    assert sorted(drained(options)) == [b"0", b"0", b"1"]
    write(numbers(spark, 0), options, **of(10))
    write(numbers(spark, 4), options, **of(10))
    assert drained(options) == []  # the empty write also counts


def test_a_failed_write_leaves_nothing_and_its_version_can_be_written_again(
    spark: SparkSession, options: dict[str, str]
) -> None:
    fails = numbers(spark, 100, 2).withColumn(
        "body", functions.expr("if(body = '99', raise_error('the last row'), body)")
    )
    write(numbers(spark, 1), options, **of(1))
    with pytest.raises(PySparkException):
        write(fails, options, rowsPerTransaction="10", **of(2))
    assert state(options) == (1, 0)
    write(numbers(spark, 1), options, **of(1))
    assert state(options) == (1, 0)  # the failure of version 2 does not make version 1 newer
    write(numbers(spark, 100, 2), options, **of(2))
    assert Counter(drained(options)) == Counter([b"0", *(b"%d" % n for n in range(100))])


@pytest.mark.slow
def test_a_failed_version_is_refused_after_a_later_one_has_failed_and_skipped_after_it_is_complete(
    spark: SparkSession, options: dict[str, str]
) -> None:
    fails = numbers(spark, 1).withColumn("body", functions.expr("raise_error('no')"))
    for version in (1, 2):
        with pytest.raises(PySparkException):
            write(numbers(spark, 5, 1).union(fails), options, **of(version))
    with pytest.raises(PySparkException, match="has begun, and batch 1 is not complete"):
        write(numbers(spark, 1), options, **of(1))
    write(numbers(spark, 2), options, **of(2))
    write(numbers(spark, 1), options, **of(1))
    assert sorted(drained(options)) == [b"0", b"1"]


def test_a_function_for_each_batch_that_is_run_again_puts_each_row_once(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    fail = [True]
    other = {**options, "queue": "invoices"}

    def both(frame: DataFrame, batch: int) -> None:
        write(frame, options, **of(batch, "lines"))
        if batch == 1 and fail[0]:
            raise RuntimeError("after the first of two writes")
        write(frame, other, **of(batch, "lines"))

    (tmp_path / "in").mkdir()
    lines = spark.readStream.schema("body string").option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
    for n in range(3):
        (tmp_path / "in" / f"{n}.json").write_text("".join(f'{{"body": "{n}.{k}"}}\n' for k in range(50)))
    writer = lines.writeStream.foreachBatch(both).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer = writer.trigger(availableNow=True)
    with pytest.raises(PySparkException, match="after the first of two writes"):
        started(writer.start).awaitTermination(240)
    fail[0] = False
    assert started(writer.start).awaitTermination(240)
    expected = Counter(f"{n}.{k}".encode() for n in range(3) for k in range(50))
    assert Counter(drained(options)) == expected
    assert Counter(drained(other)) == expected
    assert pending(options) == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"txnAppId": "a"}, "give txnAppId and txnVersion together"),
        ({"txnVersion": "1"}, "give txnAppId and txnVersion together"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "txnVersion='-1': give an integer"),
        ({"txnAppId": "a", "txnVersion": str(2**63)}, "give an integer from 0"),
        ({"txnAppId": "a", "txnVersion": "9" * 5000}, "give an integer from 0"),
        ({"txnAppId": "a", "txnVersion": "1", "writeId": "w"}, "leave writeId out"),
    ],
)
def test_incomplete_numbers_are_refused(
    spark: SparkSession, options: dict[str, str], given: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        write(numbers(spark, 1), options, **given)
