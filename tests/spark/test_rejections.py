"""Messages that the function of foreachBatch rejects become dead letters when their batch is done."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions

import aiozkqueue as zq
from aiozkqueue.batches.rejections import Rejections
from aiozkqueue.errors import ClaimLostError, NotFoundError
from aiozkqueue.operations.ledger_marks import Mark
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import below
from tests.spark.streams import started
from tests.spark.test_attempts import dead
from tests.spark.test_batch import put
from tests.spark.test_ledger import driver
from tests.spark.test_parts import use_bundles
from tests.spark.test_stream import left

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)


def reject(frame: DataFrame, options: Mapping[str, str], reason: str = "unpaid") -> None:
    rows = frame.select("id", functions.lit(reason).alias("reason"))
    rows.write.format("aiozkqueue").mode("append").options(**options, content="deadLetters").save()


def run(
    spark: SparkSession, options: Mapping[str, str], folder: Path, function: Callable[[DataFrame, int], None]
) -> None:
    stream = spark.readStream.format("aiozkqueue").options(**options, maxOffsetsPerTrigger="150").load()
    writer = stream.writeStream.foreachBatch(function).option("checkpointLocation", str(folder / "checkpoint"))
    assert started(writer.trigger(availableNow=True).start).awaitTermination(240)


@pytest.mark.parametrize(
    "bundles", [pytest.param(False, marks=pytest.mark.slow), True], ids=["single items", "bundles"]
)
def test_rejected_messages_become_dead_letters_and_the_others_are_written(
    spark: SparkSession, options: dict[str, str], tmp_path: Path, *, bundles: bool
) -> None:
    if bundles:
        use_bundles(options)
    put(options, *(b"%d" % n for n in range(300)))
    fail = [True]

    def handle(frame: DataFrame, batch: int) -> None:
        body = functions.col("body").cast("string").cast("int")
        if fail[0]:  # this decision does not count, because the batch is retried
            reject(frame.where(body % 50 == 1), options, "by mistake")
            raise RuntimeError("the first attempt")
        reject(frame.where(body % 50 == 0), options)
        reject(frame.where(body == 100), options, "twice")
        good = frame.where(body % 50 != 0)  # reads the batch a second time
        good.select("body").write.mode("overwrite").parquet(str(tmp_path / f"out/batch={batch}"))

    with pytest.raises(PySparkException, match="the first attempt"):
        run(spark, options, tmp_path, handle)
    fail[0] = False
    run(spark, options, tmp_path, handle)
    rows = sorted(int(row.body) for row in spark.read.parquet(str(tmp_path / "out")).collect())
    assert rows == [n for n in range(300) if n % 50]
    assert sorted(dead(options)) == sorted(
        (b"%d" % n, f"stream 'spark': {'twice' if n == 100 else 'unpaid'}") for n in range(0, 300, 50)
    )
    assert left(options) == (0, 0, 0)


def test_messages_outside_the_current_batch_and_wrong_columns_are_refused(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    put(options, b"waiting")
    frame = spark.createDataFrame([("id1",)], "id string")
    with pytest.raises(PySparkException, match="message 'id1' is in no batch that a query of group 'spark' handles"):
        reject(frame, options)
    with pytest.raises(PySparkException, match="select two strings: the `id` of a message, and the `reason`"):
        frame.write.format("aiozkqueue").mode("append").options(**options, content="deadLetters").save()
    for content in ("history", "deadLetters"):
        stream = spark.readStream.format("rate").load().select(functions.lit(b"x").alias("body")).writeStream
        stream = stream.format("aiozkqueue").options(**options, content=content)
        with pytest.raises(PySparkException, match="content="):
            stream.option("checkpointLocation", str(tmp_path)).start().awaitTermination(60)


async def test_a_decision_of_an_earlier_attempt_is_refused_and_one_of_this_attempt_can_be_repeated(
    zookeeper: str, queue_root: str
) -> None:
    async with zq.connect(zookeeper, root=queue_root) as session:
        queue = session.queue("orders")
        ids = await queue.put_many([b"a", b"b", b"c"])
        async with driver(zookeeper, queue_root) as ledger:
            number = await ledger.next_batch(-1, None)
            early = Rejections(core_of(session).handle("orders"), "spark")
            await early.open()
            with pytest.raises(NotFoundError):  # no attempt at the batch has begun yet
                await early.reject({ids[0]: "too early"})
            first = await ledger.hand_out(number, "stream")
            late = Rejections(core_of(session).handle("orders"), "spark")
            await late.open()
            second = await ledger.hand_out(number, "stream")
            assert first.attempt < second.attempt
            with pytest.raises(ClaimLostError, match="another attempt at it has begun"):
                await late.reject({ids[0]: "of the first attempt"})
            now = Rejections(core_of(session).handle("orders"), "spark")
            await now.open()
            for reason in ("no", "no", "no, really"):
                await now.reject({ids[1]: reason})
            marked = await below(core_of(session).zookeeper, second.pages[0].path)
            assert set(marked) <= set(ids)
            await second.reading.note(core_of(session).zookeeper)
            await ledger.acknowledge(number, "stream")
            with pytest.raises(ClaimLostError, match="the batch is done"):
                await now.reject({ids[2]: "too late"})
        (letter,) = await queue.dead_letters.peek()
        assert (letter.body, letter.reason) == (b"b", "stream 'spark': no, really")
        assert await queue.size() == 0


@pytest.mark.parametrize("mark", [Mark("no JSON"), Mark("unpaid", 7), Mark("", 0), Mark("12 is no name")])
def test_a_mark_is_read_back(mark: Mark) -> None:
    assert Mark.decode(mark.encode()) == mark
    assert Mark.decode(b"\xff no JSON").words == "the payload does not decode: \ufffd no JSON"


def test_many_messages_of_several_batches_are_marked(options: dict[str, str]) -> None:
    async def main() -> None:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            queue = session.queue("orders")
            ids = await queue.put_many([b"%d" % n for n in range(900)])
            async with driver(options["hosts"], options["root"]) as ledger:
                number = await ledger.next_batch(-1, None)
                handed = await ledger.hand_out(number, "stream")
                rejections = Rejections(core_of(session).handle("orders"), "spark")
                await rejections.open()
                await rejections.reject(dict.fromkeys(ids, "all"))
                await handed.reading.note(core_of(session).zookeeper)
                await ledger.acknowledge(number, "stream")
            assert await queue.dead_letters.size() == 900

    asyncio.run(main())
