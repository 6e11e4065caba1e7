"""A queue as a stream: drained to files, with consumers in parallel, and across restarts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

import aiozkqueue as zq
from tests.spark.streams import started
from tests.spark.test_batch import drained, put
from tests.spark.test_parts import use_bundles

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.timeout(300)


class Files:
    """A stream into Parquet files, which are written once for each batch."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str], folder: Path) -> None:
        self._spark = spark
        self._options = options
        self._folder = folder

    def start(self, *, once: bool, **more: str) -> StreamingQuery:
        stream = self._spark.readStream.format("aiozkqueue").options(**self._options, **more).load()
        writer = stream.select("id", "body").writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint"))
        writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime="100 milliseconds")
        return started(lambda: writer.start(str(self._folder / "out")))

    def drain(self, **more: str) -> None:
        query = self.start(once=True, **more)
        assert query.awaitTermination(240)

    def bodies(self) -> list[bytes]:
        return [bytes(row.body) for row in self._spark.read.parquet(str(self._folder / "out")).collect()]


def left(options: Mapping[str, str]) -> tuple[int, int, int]:
    """Return the number of messages, of held messages, and of ledgers that hold any."""

    async def look() -> tuple[int, int, int]:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            stats = await session.queue(options["queue"]).stats()
            return stats.size, stats.in_flight, stats.ledgers

    return asyncio.run(look())


@pytest.mark.slow
@pytest.mark.parametrize("bundles", [False, True], ids=["single items", "bundles"])
def test_each_of_100_000_messages_is_written_once_while_consumers_also_take(
    spark: SparkSession, options: dict[str, str], tmp_path: Path, *, bundles: bool
) -> None:
    if bundles:
        use_bundles(options)
    numbers = [b"%d" % n for n in range(100_000)]
    put(options, *numbers)
    taken: list[bytes] = []
    begun, done = threading.Event(), threading.Event()

    async def consume() -> None:
        async with (
            zq.connect(options["hosts"], root=options["root"]) as session,
            session.queue("orders").consume(until_idle=0) as deliveries,
        ):
            async for delivery in deliveries:
                async with delivery:
                    taken.append(delivery.body)
                begun.set()
                if done.is_set() or len(taken) >= 5000:
                    break

    consumer = threading.Thread(target=asyncio.run, args=(consume(),))
    files = Files(spark, options, tmp_path)
    consumer.start()
    try:
        assert begun.wait(120)
        files.drain(maxOffsetsPerTrigger="40000", minPartitions="4")
    finally:
        done.set()
        consumer.join()
    rest = drained(options)  # the messages that the consumer has returned
    assert Counter([*files.bodies(), *taken, *rest]) == Counter(numbers)
    assert left(options) == (0, 0, 0)


def test_the_last_batch_of_an_idle_queue_is_acknowledged(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    put(options, b"a", b"b")
    files = Files(spark, options, tmp_path)
    query = files.start(once=False)
    try:
        for _ in range(600):
            if left(options) == (0, 0, 0):
                break
            assert query.exception() is None
            query.awaitTermination(1)
        assert left(options) == (0, 0, 0)
    finally:
        query.stop()
    assert sorted(files.bodies()) == [b"a", b"b"]


def test_a_stream_that_starts_on_an_empty_queue_writes_the_messages_that_come_later(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    put(options, b"taken")
    assert drained(options) == [b"taken"]  # the queue exists and is empty
    files = Files(spark, options, tmp_path)
    query = files.start(once=False)
    try:
        while not query.recentProgress:  # the first batch, without messages
            assert query.exception() is None
            query.awaitTermination(1)
        put(options, b"a", b"b")
        query.processAllAvailable()
        put(options, b"c")
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(files.bodies()) == [b"a", b"b", b"c"]


def test_a_stopped_query_holds_only_the_batch_that_its_checkpoint_knows(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    put(options, b"1", b"2", b"3", b"4", b"5", b"6")
    stream = spark.readStream.format("aiozkqueue").options(**options, maxOffsetsPerTrigger="2").load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = started(lambda: writer.trigger(processingTime="1 hour").start())
    try:
        wait_until_held(options, 4)  # the batch of the checkpoint, and the prepared batch
    finally:
        query.stop()
    wait_until_held(options, 2)
    query = started(lambda: writer.trigger(availableNow=True).start())
    assert query.awaitTermination(240)
    assert left(options) == (0, 0, 0)


def test_a_running_stream_whose_queue_is_deleted_ends_with_that_reason(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    async def delete() -> None:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            await session.queue(options["queue"]).admin.delete(force=True)

    put(options, b"1", b"2")
    query = Files(spark, options, tmp_path).start(once=False)
    try:
        deadline = time.monotonic() + 60
        while left(options)[0]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        asyncio.run(delete())
        with pytest.raises(PySparkException, match="ClaimLostError: queue 'orders' was deleted"):
            query.awaitTermination(240)
    finally:
        query.stop()


def wait_until_held(options: Mapping[str, str], number: int) -> None:
    deadline = time.monotonic() + 60
    while (held := left(options)[1]) != number:
        assert time.monotonic() < deadline, held
        time.sleep(0.1)


def test_a_restarted_stream_continues_where_it_stopped(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    files = Files(spark, options, tmp_path)
    put(options, b"1", b"2", b"3")
    files.drain(maxOffsetsPerTrigger="2")
    put(options, b"4", b"5")
    files.drain(maxOffsetsPerTrigger="2")
    assert sorted(files.bodies()) == [b"1", b"2", b"3", b"4", b"5"]
    assert left(options) == (0, 0, 0)


def test_a_failed_batch_has_the_same_messages_at_its_retry(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    seen: list[tuple[int, list[str]]] = []

    def run(*, fail: bool) -> None:
        def sink(frame: object, number: int) -> None:
            seen.append((number, sorted(row.id for row in frame.collect())))  # type: ignore[attr-defined]
            if fail and len(seen) == 2:
                msg = "the sink is down"
                raise RuntimeError(msg)

        stream = spark.readStream.format("aiozkqueue").options(**options, maxOffsetsPerTrigger="10").load()
        writer = stream.writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(sink)
        started(writer.trigger(availableNow=True).start).awaitTermination(120)

    ids = put(options, *[b"%d" % n for n in range(30)])
    with pytest.raises(PySparkException, match="the sink is down"):
        run(fail=True)
    wait_until_held(options, 10)  # the batch after it is released
    assert left(options) == (20, 10, 1)
    put(options, b"new")
    run(fail=False)
    assert seen[1] == seen[2]
    assert [number for number, _ in seen] == [0, 1, 1, 2, 3]
    assert Counter(message_id for number, found in dict(seen).items() for message_id in found if number < 3) == Counter(
        ids
    )
    assert left(options) == (0, 0, 0)


def test_an_undecodable_payload_becomes_a_dead_letter_and_the_others_become_rows(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    put(options, b'{"n": 1}', b'{"n": "one"}', b"\xff", b'{"n": 2}')
    rows: list[int] = []

    def run(schema: str, **more: str) -> None:
        stream = spark.readStream.format("aiozkqueue").options(**options, **more).schema(schema).load()
        writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer = writer.foreachBatch(lambda frame, _: rows.extend(row.n for row in frame.collect()))
        started(writer.trigger(availableNow=True).start).awaitTermination(240)

    with pytest.raises(PySparkException, match="does not decode"):
        run("n int", mode="FAILFAST")
    assert left(options) == (4, 4, 1)
    run("n int", mode="DEADLETTER")  # otherwise, the same batch
    assert sorted(rows) == [1, 2]
    assert left(options) == (0, 0, 0)
    dead = spark.read.format("aiozkqueue").options(**options, content="deadLetters").load().collect()
    assert sorted(bytes(row.body) for row in dead) == [b'{"n": "one"}', b"\xff"]
    assert all("does not decode" in row.reason for row in dead)
    with pytest.raises(PySparkException, match="a batch read changes nothing"):
        spark.read.format("aiozkqueue").options(**options, mode="DEADLETTER").load().collect()


def test_a_stream_writes_each_message_of_bundles_once(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    numbers = [b"%d" % n for n in range(500)]

    async def fill() -> None:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            queue = session.queue(options["queue"])
            await queue.configure(zq.QueueConfig(bundle=64))
            await queue.put_many(numbers)

    asyncio.run(fill())
    files = Files(spark, options, tmp_path)
    files.drain()
    assert sorted(files.bodies()) == sorted(numbers)
    assert left(options) == (0, 0, 0)
