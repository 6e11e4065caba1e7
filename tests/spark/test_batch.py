"""Data frames are written to queues, and queues are read as data frames."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient
from pyspark.errors import PySparkException
from pyspark.sql import Row, functions

import aiozkqueue as zq
from aiozkqueue.spark import register

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(300)


def drained(options: Mapping[str, str]) -> list[bytes]:
    """Return the messages that plain consumers take until the queue is empty."""

    async def drain() -> list[bytes]:
        bodies: list[bytes] = []
        async with zq.connect(options["hosts"], root=options["root"]) as session:

            async def take() -> None:
                async with session.queue(options["queue"]).consume(until_idle=0, prefetch=500) as deliveries:
                    bodies.extend([delivery.body async for delivery in deliveries])

            await asyncio.gather(take(), take())
        return bodies

    return asyncio.run(drain())


def put(options: Mapping[str, str], *bodies: bytes) -> list[str]:
    """Put with the direct API."""

    async def put_all() -> list[str]:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            return await session.queue(options["queue"]).put_many(bodies)

    return asyncio.run(put_all())


def state(options: Mapping[str, str]) -> tuple[int, int]:
    """Return the number of messages, visible or not, and the number of incomplete batches."""

    async def look() -> tuple[int, int]:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            stats = await session.queue(options["queue"]).stats()
            return stats.size, stats.staged

    return asyncio.run(look())


def numbers(spark: SparkSession, count: int, partitions: int = 4) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(functions.col("id").cast("string").alias("body"))


def write(frame: DataFrame, options: Mapping[str, str], **more: str) -> None:
    frame.write.format("aiozkqueue").mode("append").options(**options, **more).save()


@pytest.mark.slow
def test_plain_consumers_take_each_of_100_000_written_rows_once(
    spark: SparkSession, options: dict[str, str], record_property: Callable[[str, object], None]
) -> None:
    began = datetime.now(UTC)
    write(numbers(spark, 100_000), options)
    took = (datetime.now(UTC) - began).total_seconds()
    record_property("figures", f"Spark: {100_000 / took:,.0f} rows/s written by 4 partitions")
    assert Counter(drained(options)) == Counter(b"%d" % n for n in range(100_000))


def test_a_snapshot_reads_all_messages_and_claims_none(spark: SparkSession, options: dict[str, str]) -> None:
    async def prepare() -> str:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            queue = session.queue("orders")
            await queue.put(b"held")
            await queue.put(b"urgent", priority=-3, headers={"tenant": "a"}, key="k")
            await queue.put(b"tomorrow", delay=86_400)
            async with session.transaction() as tx:
                (held_one,) = await tx.take_many(queue, 1)
                rows = await asyncio.to_thread(lambda: frame().collect())
                states.update({bytes(row.body): row for row in rows})
                return held_one.id

    def frame() -> DataFrame:
        return spark.read.format("aiozkqueue").options(**options, minPartitions="3").load()

    states: dict[bytes, Row] = {}
    held = asyncio.run(prepare())
    assert {body: row.state for body, row in states.items()} == {
        b"held": "waiting",
        b"urgent": "in flight",
        b"tomorrow": "delayed",
    }
    urgent = states[b"urgent"]
    assert (urgent.id, urgent.priority, urgent.headers, urgent.key) == (held, -3, {"tenant": "a"}, "k")
    assert urgent.owner
    assert states[b"tomorrow"].due > states[b"tomorrow"].enqueued_at
    assert sorted(bytes(row.body) for row in frame().collect()) == [b"held", b"tomorrow"]


def test_filters_that_spark_pushes_down_limit_the_rows_read(spark: SparkSession, options: dict[str, str]) -> None:
    wanted, _ = put(options, b'{"id": 1}', b"no JSON, and not to be read")
    reader = spark.read.format("aiozkqueue").options(**options).schema("id int, _id string")
    named = functions.col("_id") == wanted
    with pytest.raises(PySparkException, match="does not decode"):
        reader.option("mode", "FAILFAST").load().where(named).collect()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushing = reader.option("pushDown", "true")
        assert [row.id for row in pushing.load().where(named).collect()] == [1]
        # A field of the payload is not the id of a message, whatever its name.
        by_field = pushing.option("mode", "PERMISSIVE").load().where(functions.col("id") == 1)
        assert [row._id for row in by_field.collect()] == [wanted]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_the_group_and_the_attempts_of_a_message_are_columns(spark: SparkSession, options: dict[str, str]) -> None:
    async def prepare() -> None:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            queue = session.queue("orders")
            await queue.configure(zq.QueueConfig(policy=zq.ConsumeTimes(3)))
            await queue.put(b"a", group="tenant 1")
            async with session.transaction() as tx:
                assert await tx.take(queue)
                await tx.rollback(delay=0)

    asyncio.run(prepare())
    (row,) = spark.read.format("aiozkqueue").options(**options).load().collect()
    assert (row.group, row.attempt, row.owner, row.due) == ("tenant 1", 1, None, None)


def test_the_held_message_of_a_group_or_of_an_ordered_queue_is_in_flight_and_those_behind_it_wait(
    spark: SparkSession, options: dict[str, str]
) -> None:
    def states(queue: str) -> dict[bytes, tuple[str, bool]]:
        rows = (
            spark.read.format("aiozkqueue").options(**{**options, "queue": queue}, minPartitions="2").load().collect()
        )
        return {bytes(row.body): (row.state, row.owner is not None) for row in rows}

    async def read(queue: str, *, ordered: bool) -> dict[bytes, tuple[str, bool]]:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            jobs = session.queue(queue)
            await jobs.configure(zq.QueueConfig(ordered=ordered))
            for value in (b"0", b"1", b"2"):
                await jobs.put(value, group=None if ordered else "tenant 1")
            async with session.transaction() as tx:
                assert await tx.take(jobs, timeout=30)
                return await asyncio.to_thread(states, queue)

    expected = {b"0": ("in flight", True), b"1": ("waiting", False), b"2": ("waiting", False)}
    assert asyncio.run(read("grouped", ordered=False)) == expected
    assert asyncio.run(read("ordered", ordered=True)) == expected


def test_tags_are_columns_both_ways_and_consumers_filter_by_them(spark: SparkSession, options: dict[str, str]) -> None:
    rows = [("red", {"color": "red"}), ("blue", {"color": "blue"}), ("none", None)]
    write(spark.createDataFrame(rows, "body string, tags map<string,string>"), options)
    write(spark.createDataFrame([("9", {"size": 9})], "body string, tags map<string,int>"), options)
    read = spark.read.format("aiozkqueue").options(**options).load().collect()
    assert {bytes(row.body): row.tags for row in read} == {
        b"red": {"color": "red"},
        b"blue": {"color": "blue"},
        b"none": {},
        b"9": {"size": "9"},
    }
    with pytest.raises(PySparkException, match=r"make it map<string,string> or map<string,bigint>"):
        write(spark.createDataFrame([("x", {"a": 1.5})], "body string, tags map<string,double>"), options)

    async def take(tag: str, value: str | int) -> list[bytes]:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            consumer = session.queue("orders").consume(until_idle=0, filters=zq.Filter(tag, "eq", value))
            async with consumer as deliveries:
                return [delivery.body async for delivery in deliveries]

    assert asyncio.run(take("color", "red")) == [b"red"]
    assert asyncio.run(take("size", 9)) == [b"9"]
    assert sorted(drained(options)) == [b"blue", b"none"]


def test_columns_are_written_as_json_and_read_back_with_a_schema(spark: SparkSession, options: dict[str, str]) -> None:
    schema = "name string, amount decimal(10,2), at timestamp, tags array<string>, more map<string,bigint>, raw binary"
    at = datetime(2026, 3, 1, 17, 30, tzinfo=UTC)
    rows = [("é", "12.50", at, ["a", None], {"x": 1}, b"\x00\xff"), (None, None, None, None, None, None)]
    frame = spark.createDataFrame(rows, schema.replace("decimal(10,2)", "string"))
    frame = frame.withColumn("amount", functions.col("amount").cast("decimal(10,2)"))
    write(frame, options)
    read = spark.read.format("aiozkqueue").options(**options).schema(f"{schema}, _id string").load()
    assert sorted(map(str, read.drop("_id").collect())) == sorted(map(str, frame.collect()))
    assert all(row._id for row in read.collect())
    assert json.loads(min(drained(options), key=len))["name"] is None


def test_an_undecodable_payload_is_null_and_kept_or_fails_the_job(spark: SparkSession, options: dict[str, str]) -> None:
    put(options, b'{"n": 1}', b'{"n": "one"}', b"\xff", b"[1]")
    reader = spark.read.format("aiozkqueue").options(**options).schema("n int, _corrupt_record string")
    found = {(row.n, row._corrupt_record) for row in reader.load().collect()}
    assert found == {(1, None), (None, '{"n": "one"}'), (None, "\\xff"), (None, "[1]")}
    with pytest.raises(PySparkException, match="does not decode"):
        reader.option("mode", "FAILFAST").load().collect()


def test_a_read_of_dead_letters_and_of_history_returns_rows(spark: SparkSession, options: dict[str, str]) -> None:
    async def prepare() -> None:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            queue = session.queue("orders")
            await queue.configure(zq.QueueConfig(history=zq.History()))
            await queue.put_many([b"good", b"bad"])
            async with queue.consume(until_idle=0) as deliveries:
                async for delivery in deliveries:
                    if delivery.body == b"bad":
                        await delivery.reject("no such customer")

    asyncio.run(prepare())
    reader = spark.read.format("aiozkqueue").options(**options)
    (dead,) = reader.option("content", "deadLetters").load().collect()
    assert (bytes(dead.body), dead.reason) == (b"bad", "no such customer")
    history = reader.option("content", "history").load().collect()
    assert sorted(row.outcome for row in history) == ["dead-lettered", "finished"]
    assert all(row.ended_at >= row.put_at for row in history)


def test_a_write_repeated_with_its_write_id_adds_nothing_even_after_its_rows_were_taken(
    spark: SparkSession, options: dict[str, str]
) -> None:
    write(numbers(spark, 1000), options, writeId="day 1")
    assert len(drained(options)) == 1000
    write(numbers(spark, 1000), options, writeId="day 1")
    assert drained(options) == []
    write(numbers(spark, 1000), options, writeId="day 2")
    assert len(drained(options)) == 1000


def test_a_failed_write_leaves_nothing_and_its_write_id_can_be_used_again(
    spark: SparkSession, options: dict[str, str]
) -> None:
    frame = numbers(spark, 4000, partitions=2)
    last = functions.when(functions.col("body") != "3999", functions.col("body"))
    with pytest.raises(PySparkException, match="'body' is null"):
        write(frame.withColumn("body", last), options, writeId="again", rowsPerTransaction="100")
    assert drained(options) == []
    assert state(options) == (0, 0)
    write(numbers(spark, 4000, partitions=3), options, writeId="again", rowsPerTransaction="100")
    assert Counter(drained(options)) == Counter(b"%d" % n for n in range(4000))


def test_bad_options_and_columns_are_refused_before_any_job(spark: SparkSession, options: dict[str, str]) -> None:
    def refused(match: str, **more: str) -> None:
        with pytest.raises(PySparkException, match=match):
            spark.read.format("aiozkqueue").options(**{**options, **more}).load()

    refused("InvalidOptionError.*no option 'colour'", colour="red")
    refused("no option 'maxoffsetpertrigger', did you mean 'maxOffsetsPerTrigger'", maxOffsetPerTrigger="5")
    refused("InvalidOptionError.*content='all'", content="all")
    refused("InvalidNameError", queue="a/b")
    refused("minPartitions='0'", minPartitions="0")
    with pytest.raises(PySparkException, match=r"NotFoundError.*there is no queue 'orders'"):
        spark.read.format("aiozkqueue").options(**options).load().collect()
    with pytest.raises(PySparkException, match="column 'colour'"):
        write(numbers(spark, 1).withColumn("colour", functions.lit("red")), options)
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        numbers(spark, 1).write.format("aiozkqueue").mode("overwrite").options(**options).save()


def test_a_write_into_the_path_of_a_queue_of_kazoo_is_refused_and_changes_nothing(
    spark: SparkSession, options: dict[str, str]
) -> None:
    path = f"{options['root']}/orders"
    client = KazooClient(options["hosts"], timeout=30.0)
    client.start()
    try:
        client.Queue(path).put(b"theirs")
        before = client.get_children(path)
        with pytest.raises(PySparkException, match=f"{path} is a queue of Curator or kazoo"):
            write(numbers(spark, 10), options)
        with pytest.raises(PySparkException, match="NotFoundError"):
            spark.read.format("aiozkqueue").options(**options).load().collect()
        assert client.get_children(path) == before
        queue = client.Queue(path)
        assert [queue.get(), queue.get()] == [b"theirs", None]
    finally:
        client.stop()
        client.close()


def test_plans_errors_and_the_event_log_contain_no_secret(
    spark: SparkSession,
    options: dict[str, str],
    tmp_path: Path,
    spark_events: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    secret = "s3cr3t-" + "x" * 8
    for name in ("auth", "password"):
        with pytest.raises(PySparkException, match="authFile") as error:
            spark.read.format("aiozkqueue").options(**options, **{name: f"digest:me:{secret}"}).load()
        assert secret not in str(error.value)
    credentials = tmp_path / "credentials"
    credentials.write_text(f"digest:me:{secret}")
    authenticated = {**options, "authFile": str(credentials)}
    write(numbers(spark, 10), authenticated)
    frame = spark.read.format("aiozkqueue").options(**authenticated).load()
    assert frame.count() == 10
    with pytest.raises(PySparkException, match="AccessDeniedError"):
        spark.read.format("aiozkqueue").options(**options).load().collect()
    frame.explain(mode="extended")
    shown = capfd.readouterr()
    logs = "".join(file.read_text() for file in spark_events.rglob("*") if file.is_file())
    assert "aiozkqueue" in logs
    assert secret not in shown.out + shown.err + logs


def test_spark_finds_the_format_by_itself_and_registering_it_again_is_harmless(
    spark: SparkSession, options: dict[str, str]
) -> None:
    put(options, b"x")
    register(spark)
    assert spark.read.format("aiozkqueue").options(**options).load().count() == 1
