"""Spark's use of the format's classes: it creates and pickles them without I/O, and may call methods twice."""

from __future__ import annotations

import asyncio
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSourceArrowWriter
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

import aiozkqueue as zq
from aiozkqueue.spark import AiozkqueueDataSource
from aiozkqueue.spark.columns import default_schema
from aiozkqueue.spark.options import Content, parse_options
from aiozkqueue.spark.streaming import QueueStreamReader
from aiozkqueue.testing import Opcode, ZooKeeperProxy
from tests.spark.test_batch import put

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from aiozkqueue.testing import Request

pytestmark = pytest.mark.timeout(120)

PAYLOADS = StructType([StructField("body", BinaryType())])


def test_creating_and_pickling_a_source_opens_no_connection_and_no_file(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        nowhere = str(tmp_path / "nowhere")
        source = AiozkqueueDataSource(
            {"hosts": f"127.0.0.1:{server.getsockname()[1]}", "queue": "orders", "authFile": nowhere, "tlsCa": nowhere}
        )
        schema = source.schema()
        stream = source.streamReader(schema)
        writers = [source.writer(PAYLOADS, overwrite=False), source.streamWriter(PAYLOADS, overwrite=False)]
        for obj in (source, source.reader(schema), stream, *writers):
            cloudpickle.loads(cloudpickle.dumps(obj))  # type: ignore[no-untyped-call]
        assert stream.initialOffset() == stream.initialOffset() == {"seq": -1}
        assert isinstance(stream.getDefaultReadLimit(), ReadAllAvailable)
        stream.stop()
        with pytest.raises(BlockingIOError):
            server.accept()
        with socket.create_connection(server.getsockname()):  # shows that a connection would be noticed
            server.accept()[0].close()


def stream_of(options: Mapping[str, str]) -> QueueStreamReader:
    parsed = parse_options(options)
    return QueueStreamReader(default_schema(parsed.content), parsed)


def test_max_offsets_per_trigger_is_passed_to_spark_as_a_read_limit(options: dict[str, str]) -> None:
    limit = stream_of({**options, "maxOffsetsPerTrigger": "7"}).getDefaultReadLimit()
    assert isinstance(limit, ReadMaxRows)
    assert limit.max_rows == 7


async def test_a_task_reads_nothing_before_its_server_has_caught_up(zookeeper: str, options: dict[str, str]) -> None:
    ids = await asyncio.to_thread(put, options, b"1", b"2", b"3")
    driver = stream_of(options)
    end = await asyncio.to_thread(driver.latestOffset, driver.initialOffset(), ReadAllAvailable())
    (share,) = await asyncio.to_thread(driver.partitions, driver.initialOffset(), end)
    seen: list[Request] = []

    def of_the_batch(request: Request) -> bool:
        seen.append(request)
        return False

    def read(reader: QueueStreamReader) -> list[Any]:
        return [message_id for batch in reader.read(share) for message_id in batch["id"].to_pylist()]

    async with ZooKeeperProxy(zookeeper) as proxy:
        proxy.hold_request(of_the_batch, times=None)
        sync = proxy.hold_reply(Opcode.SYNC)
        task = asyncio.ensure_future(asyncio.to_thread(read, stream_of({**options, "hosts": proxy.hosts})))
        await sync.struck(60)
        await asyncio.to_thread(put, {**options, "hosts": proxy.hosts, "queue": "other"}, b"this takes longer")
        before = [request for request in seen if b"/ledger" in request.body or b"/orders/items" in request.body]
        sync.release()
        assert sorted(await task) == sorted(ids)
    assert before == []
    assert [request for request in seen if b"/orders/items" in request.body]
    await asyncio.to_thread(driver.stop)


def test_rows_are_read_and_written_as_arrow_batches_of_exactly_the_schema(options: dict[str, str]) -> None:
    put(options, *[b"%d" % n for n in range(2500)])
    schema = default_schema(Content.ITEMS)
    source = AiozkqueueDataSource(options)
    stream, batch = source.streamReader(schema), source.reader(schema)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    try:
        read = [
            [
                arrow_batch
                for share in stream.partitions(stream.initialOffset(), end)
                for arrow_batch in stream.read(share)
            ],
            [arrow_batch for share in batch.partitions() for arrow_batch in batch.read(share)],
        ]
    finally:
        stream.stop()
    for batches in read:
        assert all(isinstance(arrow_batch, pa.RecordBatch) for arrow_batch in batches)
        assert {arrow_batch.schema for arrow_batch in batches} == {to_arrow_schema(schema, timezone="UTC")}
        assert sum(arrow_batch.num_rows for arrow_batch in batches) == 2500
        assert len(batches) <= 4  # batches of a thousand rows, not single rows
    assert isinstance(source.writer(PAYLOADS, overwrite=False), DataSourceArrowWriter)


def test_moments_are_the_same_in_every_time_zone_of_a_session(spark: SparkSession, options: dict[str, str]) -> None:
    async def stored() -> datetime:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            (message,) = await session.queue("orders").peek()
            return message.enqueued_at

    put(options, b'{"at": "2026-03-01T17:30:00+05:00"}')
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    try:
        reader = spark.read.format("aiozkqueue").options(**options)
        (row,) = reader.schema("at timestamp, _enqueued_at timestamp").load().selectExpr(
            "unix_micros(at) at", "unix_micros(_enqueued_at) put"
        ).collect()  # fmt: skip
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    assert row.at == datetime(2026, 3, 1, 12, 30, tzinfo=UTC).timestamp() * 1_000_000
    assert row.put == round(asyncio.run(stored()).timestamp() * 1_000_000)
