"""Partitions without rows: they need no session, and do not hide rows of an earlier run.

The tests use the classes that Spark calls, without Spark.
"""

from __future__ import annotations

import asyncio

import pytest
from pyspark.sql.types import StringType, StructField, StructType

import aiozkqueue as zq
from aiozkqueue.spark.columns import default_schema
from aiozkqueue.spark.options import parse_options
from aiozkqueue.spark.rejecting import DeadLetterWriter
from aiozkqueue.spark.sink import QueueStreamWriter
from aiozkqueue.spark.streaming import LedgerShare, QueueStreamReader
from aiozkqueue.spark.writing import Written
from tests.spark.calls import BODY, Partition, rows_of, use, writer_of
from tests.spark.test_batch import drained, state

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def one_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    use(Partition, monkeypatch)


def stream_writer(options: dict[str, str]) -> QueueStreamWriter:
    return QueueStreamWriter(BODY, parse_options(options), "origin")


def test_a_task_without_rows_opens_no_session() -> None:
    options = {"hosts": "127.0.0.1:1", "queue": "orders", "connectTimeout": "1"}
    for writer in (writer_of(options), stream_writer(options)):
        report = writer.write(rows_of([]))
        assert isinstance(report, Written)
        assert (report.rows, report.stage) == (0, None)
        with pytest.raises(zq.ConnectionLostError):
            writer.write(rows_of([b"a"]))


def test_a_task_without_messages_or_decisions_opens_no_session() -> None:
    options = parse_options({"hosts": "127.0.0.1:1", "queue": "orders", "connectTimeout": "1"})
    reader = QueueStreamReader(default_schema(options.content), options)
    assert list(reader.read(LedgerShare([]))) == []
    decision = StructType([StructField("id", StringType()), StructField("reason", StringType())])
    assert DeadLetterWriter(decision, options).write(rows_of([])).messages == 0


@pytest.mark.parametrize("ids", [{}, {"writeId": "once"}, {"txnAppId": "app", "txnVersion": "1"}], ids=str)
async def test_a_write_without_rows_is_complete(zookeeper: str, queue_root: str, ids: dict[str, str]) -> None:
    options = {"hosts": zookeeper, "root": queue_root, "queue": "orders", **ids}

    def write(*bodies: bytes) -> None:
        writer = writer_of(options)
        writer.commit([writer.write(rows_of([])), writer.write(rows_of(bodies))])

    await asyncio.to_thread(write)
    assert await asyncio.to_thread(state, options) == (0, 0)
    await asyncio.to_thread(write, b"a")
    assert await asyncio.to_thread(drained, options) == ([] if ids else [b"a"])


async def test_a_batch_that_is_tried_again_without_rows_is_refused_if_it_has_rows_of_a_killed_run(
    zookeeper: str, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"hosts": zookeeper, "root": queue_root, "queue": "orders"}
    killed = await asyncio.to_thread(stream_writer, options)
    await asyncio.to_thread(killed.write, rows_of([b"a", b"b"]))
    for number, run in enumerate(("second", "third")):
        monkeypatch.setattr(Partition, "run", run)
        successor = await asyncio.to_thread(stream_writer, options)
        report = await asyncio.to_thread(successor.write, rows_of([]))
        if number:
            await asyncio.to_thread(successor.commit, [report, report], 0)
        else:
            with pytest.raises(zq.NotCommittedError, match="begun with other partitions"):
                await asyncio.to_thread(successor.commit, [report, report], 0)
            assert await asyncio.to_thread(state, options) == (2, 1)
            await asyncio.to_thread(successor.abort, [report, report], 0)
        assert await asyncio.to_thread(state, options) == (0, 0)
    assert await asyncio.to_thread(drained, options) == []
