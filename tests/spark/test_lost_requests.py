"""Numbered writes and rejections whose requests or replies are lost, or whose program is replaced.

Each multi of a run is chosen in turn. The tests use the classes that Spark calls, without Spark.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructField, StructType

import aiozkqueue as zq
from aiozkqueue.spark.columns import default_schema
from aiozkqueue.spark.options import parse_options
from aiozkqueue.spark.rejecting import DeadLetterWriter
from aiozkqueue.spark.sink import QueueStreamWriter
from aiozkqueue.spark.streaming import QueueStreamReader
from aiozkqueue.testing import Opcode, ZooKeeperProxy
from tests.faults.account import multi_of
from tests.spark.calls import BODY, Partition, rows_of, use, writer_of
from tests.spark.test_attempts import dead
from tests.spark.test_batch import drained, put, state
from tests.spark.test_stream import left

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from pyspark.sql.datasource import WriterCommitMessage

    from aiozkqueue.testing import Fault

pytestmark = pytest.mark.timeout(180)

DECISION = StructType([StructField("id", StringType()), StructField("reason", StringType())])


@pytest.fixture(autouse=True)
def small_multis(monkeypatch: pytest.MonkeyPatch) -> None:
    use(Partition, monkeypatch)
    monkeypatch.setattr("aiozkqueue.batches.rejections.TOGETHER", 2)


@pytest.fixture
async def proxy(zookeeper: str) -> AsyncIterator[ZooKeeperProxy]:
    async with ZooKeeperProxy(zookeeper) as between:
        yield between


def lose(proxy: ZooKeeperProxy, when: str, nth: int) -> Fault:
    return (proxy.lose_before if when == "before" else proxy.lose_after)(Opcode.MULTI, nth=nth)


def hold(proxy: ZooKeeperProxy, when: str, nth: int) -> Fault:
    return (proxy.hold_request if when == "before" else proxy.hold_reply)(Opcode.MULTI, nth=nth)


def write_version(options: dict[str, str], version: int, bodies: Sequence[bytes]) -> None:
    """Write one partition as Spark does."""
    writer = writer_of({**options, "txnAppId": "app", "txnVersion": str(version)})
    try:
        writer.commit([writer.write(rows_of(bodies))])
    except zq.QueueError:
        writer.abort([])
        raise


def bodies_of(version: int) -> list[bytes]:
    return [b"%d.%d" % (version, n) for n in range(5)]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_version_is_written_once_if_any_of_its_requests_or_replies_is_lost(
    zookeeper: str, queue_root: str, proxy: ZooKeeperProxy, when: str
) -> None:
    for nth in count(1):
        direct = {"hosts": zookeeper, "root": f"{queue_root}/{nth}", "queue": "orders"}
        await asyncio.to_thread(write_version, direct, 1, bodies_of(1))
        fault = lose(proxy, when, nth)
        through = {**direct, "hosts": proxy.hosts}
        await asyncio.to_thread(write_version, through, 2, bodies_of(2))
        lost = len(fault.requests)
        proxy.heal()
        await asyncio.to_thread(write_version, direct, 2, bodies_of(2))  # skipped
        assert Counter(await asyncio.to_thread(drained, direct)) == Counter([*bodies_of(1), *bodies_of(2)]), nth
        if not lost:
            break
    assert nth > 5  # one multi to begin, three to put, and one to complete


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_version_whose_writer_was_replaced_at_any_request_is_written_once(
    zookeeper: str, queue_root: str, proxy: ZooKeeperProxy, when: str
) -> None:
    refused = 0
    for nth in count(1):
        direct = {"hosts": zookeeper, "root": f"{queue_root}/{nth}", "queue": "orders"}
        await asyncio.to_thread(write_version, direct, 1, bodies_of(1))
        fault = hold(proxy, when, nth)
        through = {**direct, "hosts": proxy.hosts}
        zombie = asyncio.ensure_future(asyncio.to_thread(write_version, through, 2, bodies_of(2)))
        struck = asyncio.ensure_future(fault.struck(60))
        await asyncio.wait({zombie, struck}, return_when=asyncio.FIRST_COMPLETED)
        if not struck.done():
            struck.cancel()
            await zombie
            break
        await asyncio.to_thread(write_version, direct, 2, bodies_of(2))
        assert (await asyncio.to_thread(state, direct))[0] == 10, (
            nth
        )  # visible, although the replaced writer has not ended
        fault.release()
        proxy.heal()
        with suppress(zq.NotCommittedError):
            refused += 1
            await zombie
            refused -= 1
        await asyncio.to_thread(write_version, direct, 2, bodies_of(2))
        assert Counter(await asyncio.to_thread(drained, direct)) == Counter([*bodies_of(1), *bodies_of(2)]), nth
    assert nth > 5
    assert refused > 0


@pytest.mark.parametrize("ids", [{"txnAppId": "app", "txnVersion": "1"}, {"writeId": "once"}], ids=["version", "id"])
async def test_a_failed_writer_removes_neither_rows_nor_progress_of_the_one_that_replaced_it(
    zookeeper: str, queue_root: str, proxy: ZooKeeperProxy, ids: dict[str, str]
) -> None:
    direct = {"hosts": zookeeper, "root": queue_root, "queue": "orders", **ids}
    successor = await asyncio.to_thread(writer_of, direct)
    replaced = await asyncio.to_thread(writer_of, {**direct, "hosts": proxy.hosts})
    fault = proxy.hold_request(multi_of(b"/items/item-"))
    writing_too = asyncio.ensure_future(asyncio.to_thread(replaced.write, rows_of(bodies_of(1))))
    await fault.struck()
    await asyncio.to_thread(successor.write, rows_of(bodies_of(1)))
    fault.release()
    with pytest.raises(zq.NotCommittedError):
        await writing_too
    await asyncio.to_thread(replaced.abort, [])
    again = await asyncio.to_thread(successor.write, rows_of(bodies_of(1)))  # Spark runs the task again
    await asyncio.to_thread(successor.commit, [again])
    assert Counter(await asyncio.to_thread(drained, direct)) == Counter(bodies_of(1))


async def test_a_failed_stream_removes_no_rows_of_the_run_that_replaced_it(
    zookeeper: str, queue_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"hosts": zookeeper, "root": queue_root, "queue": "orders"}

    def task_of(run: str) -> tuple[QueueStreamWriter, WriterCommitMessage]:
        monkeypatch.setattr(Partition, "run", run)
        writer = QueueStreamWriter(BODY, parse_options(options), "origin")
        return writer, writer.write(rows_of(bodies_of(1)))

    replaced, reported = await asyncio.to_thread(task_of, "first")
    successor, again = await asyncio.to_thread(task_of, "second")
    await asyncio.to_thread(replaced.abort, [reported, None], 0)
    await asyncio.to_thread(successor.commit, [again], 0)
    assert Counter(await asyncio.to_thread(drained, options)) == Counter(bodies_of(1))


class Query:
    """The use that a query makes of the source."""

    def __init__(self, options: dict[str, str]) -> None:
        parsed = parse_options(options)
        self._reader = QueueStreamReader(default_schema(parsed.content), parsed)
        self._begin = self._reader.initialOffset()

    def hand_out(self) -> None:
        """Begin an attempt at the first batch."""
        self._end = self._reader.latestOffset(self._begin, ReadAllAvailable())
        self._shares = self._reader.partitions(self._begin, self._end)

    def read(self) -> list[str]:
        batches = [batch for share in self._shares for batch in self._reader.read(share)]
        return [message_id for batch in batches for message_id in batch["id"].to_pylist()]

    def finish(self) -> None:
        """Commit the batch, and end."""
        self._reader.latestOffset(self._end, ReadAllAvailable())
        self._reader.stop()

    def stop(self) -> None:
        self._reader.stop()


def reject(options: dict[str, str], ids: Iterable[str], reason: str) -> None:
    parsed = parse_options({**options, "content": "deadLetters"})
    rows = pa.RecordBatch.from_pylist([{"id": message_id, "reason": reason} for message_id in ids])
    DeadLetterWriter(DECISION, parsed).write(iter([rows]))


@pytest.mark.parametrize("when", ["before", "after"])
async def test_messages_are_rejected_once_if_any_request_or_reply_is_lost(
    zookeeper: str, queue_root: str, proxy: ZooKeeperProxy, when: str
) -> None:
    for nth in count(1):
        options = {"hosts": zookeeper, "root": f"{queue_root}/{nth}", "queue": "orders"}
        ids = await asyncio.to_thread(put, options, *(b"%d" % n for n in range(8)))
        query = Query(options)
        await asyncio.to_thread(query.hand_out)
        assert await asyncio.to_thread(query.read) == ids
        fault = lose(proxy, when, nth)
        await asyncio.to_thread(reject, {**options, "hosts": proxy.hosts}, ids[1:6], "unpaid")
        lost = len(fault.requests)
        proxy.heal()
        await asyncio.to_thread(query.finish)
        letters = await asyncio.to_thread(dead, options)
        assert sorted(letters) == [(b"%d" % n, "stream 'spark': unpaid") for n in range(1, 6)], nth
        assert await asyncio.to_thread(left, options) == (0, 0, 0)
        if not lost:
            break
    assert nth == 4  # five messages, two per multi


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_decision_of_an_attempt_that_was_replaced_at_any_request_does_not_count(
    zookeeper: str, queue_root: str, proxy: ZooKeeperProxy, when: str
) -> None:
    for nth in range(1, 4):
        options = {"hosts": zookeeper, "root": f"{queue_root}/{nth}", "queue": "orders", "startingOffsets": "earliest"}
        ids = await asyncio.to_thread(put, options, *(b"%d" % n for n in range(8)))
        first = await asyncio.to_thread(Query, options)  # it reads the data of a time zone
        await asyncio.to_thread(first.hand_out)
        fault = hold(proxy, when, nth)
        through = {**options, "hosts": proxy.hosts}
        zombie = asyncio.ensure_future(asyncio.to_thread(reject, through, ids[1:6], "of the first attempt"))
        await fault.struck()
        await asyncio.to_thread(first.stop)
        second = await asyncio.to_thread(Query, options)
        await asyncio.to_thread(second.hand_out)
        if when == "before":
            fault.release()
            with pytest.raises(zq.ClaimLostError, match="another attempt at it has begun"):
                await zombie
        assert await asyncio.to_thread(second.read) == ids
        await asyncio.to_thread(reject, options, ids[:1], "of the second attempt")
        if when == "after":
            fault.release()
            with suppress(zq.ClaimLostError):  # no multi follows the last one
                await zombie
        proxy.heal()
        await asyncio.to_thread(second.finish)
        assert await asyncio.to_thread(dead, options) == [(b"0", "stream 'spark': of the second attempt")], nth
        assert await asyncio.to_thread(left, options) == (0, 0, 0)
