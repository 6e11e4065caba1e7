"""Checkpoints of other ledgers, and folders that already have a batch number, are refused without losing a message."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, cast

import pytest
from kazoo.client import KazooClient
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import aiozkqueue as zq
from aiozkqueue.errors import CheckpointError, UnreadBatchError
from aiozkqueue.spark.columns import default_schema
from aiozkqueue.spark.options import parse_options
from aiozkqueue.spark.streaming import QueueStreamReader
from aiozkqueue.testing import EmbeddedZooKeeper, ServerOptions
from tests.spark.streams import started
from tests.spark.test_batch import drained, put
from tests.spark.test_stream import left, wait_until_held

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from aiozkqueue.spark.streaming import LedgerShare

pytestmark = pytest.mark.timeout(300)


def drain(spark: SparkSession, options: Mapping[str, str], checkpoint: Path, out: Path, **more: str) -> None:
    """Drain the queue into Parquet files."""
    stream = spark.readStream.format("aiozkqueue").options(**options, **more).load().select("body")
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
    query = started(lambda: writer.trigger(availableNow=True).start(str(out)))
    assert query.awaitTermination(240)


def bodies(spark: SparkSession, *folders: Path) -> Counter[bytes]:
    """Return the bodies in the files."""
    found = [bytes(row.body) for folder in folders for row in spark.read.parquet(str(folder)).collect()]
    return Counter(found)


def stored(options: Mapping[str, str]) -> Counter[bytes]:
    """Return the messages of the queue, as kazoo reads them."""
    client = KazooClient(options["hosts"])
    client.start(30)
    try:
        items = f"{options['root']}/{options['queue']}/items"
        return Counter(client.get(f"{items}/{name}")[0] for name in client.get_children(items) or ())
    finally:
        client.stop()
        client.close()


class Driver:
    """Calls a reader as Spark does, with the tasks in this process."""

    def __init__(self, options: Mapping[str, str], **more: str) -> None:
        parsed = parse_options({**options, **more})
        self.reader = QueueStreamReader(default_schema(parsed.content), parsed)
        self.beginning = self.reader.initialOffset()

    def latest(self, start: dict[str, object], most: int | None = None) -> dict[str, object]:
        return self.reader.latestOffset(start, ReadAllAvailable() if most is None else ReadMaxRows(most))

    def read(self, start: dict[str, object], end: dict[str, object]) -> list[bytes]:
        return self.read_shares(self.reader.partitions(start, end))

    def read_shares(self, shares: list[LedgerShare]) -> list[bytes]:
        return [body for share in shares for batch in self.reader.read(share) for body in batch["body"].to_pylist()]


@pytest.fixture
def drivers() -> Iterator[list[Driver]]:
    made: list[Driver] = []
    yield made
    for driver in made:
        driver.reader.stop()


def begun(drivers: list[Driver], options: Mapping[str, str], **more: str) -> Driver:
    driver = Driver(options, **more)
    drivers.append(driver)
    return driver


@pytest.mark.slow
@pytest.mark.parametrize("change", ["group", "queue", "root", "servers"])
def test_a_checkpoint_with_another_group_queue_root_or_ensemble_is_refused_and_no_message_is_lost(
    spark: SparkSession, options: dict[str, str], tmp_path: Path, change: str
) -> None:
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    with ExitStack() as stack:
        if change == "servers":
            rebuilt = stack.enter_context(EmbeddedZooKeeper(ServerOptions(fsync=False)))
            other = {**options, "hosts": rebuilt.hosts}
        else:
            other = {**options, change: f"{options.get(change, '')}-other"}
        old, new = [b"%d" % n for n in range(6)], [b"%d" % n for n in range(10, 30)]
        put(options, *old)
        drain(spark, options, checkpoint, out, maxOffsetsPerTrigger="2")
        put(other, *new)
        for more in ({}, {"maxOffsetsPerTrigger": "3"}):
            with pytest.raises(PySparkException, match="CheckpointError"):
                drain(spark, other, checkpoint, out, **more)
        assert stored(other) == Counter(new)
        assert bodies(spark, out) == Counter(old)


@pytest.mark.slow
def test_a_checkpoint_of_another_root_continues_with_the_stored_messages_if_an_option_allows_it(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    put(options, b"1", b"2", b"3", b"4")
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    drain(spark, options, checkpoint, out, maxOffsetsPerTrigger="2")
    other = {**options, "root": f"{options['root']}/rebuilt"}
    put(other, b"10", b"11", b"12", b"13", b"14")
    with pytest.raises(PySparkException, match=r"CheckpointError.* of ledger .* has ledger .*failOnDataLoss=false"):
        drain(spark, other, checkpoint, out, maxOffsetsPerTrigger="2")
    drain(spark, other, checkpoint, out, maxOffsetsPerTrigger="2", failOnDataLoss="false")
    assert left(other) == (0, 0, 0)
    assert bodies(spark, out) == Counter([b"1", b"2", b"3", b"4", b"10", b"11", b"12", b"13", b"14"])


@pytest.mark.slow
def test_a_new_checkpoint_with_an_old_folder_is_refused_and_no_message_is_lost(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    put(options, b"1", b"2", b"3")
    drain(spark, options, tmp_path / "first", tmp_path / "out", maxOffsetsPerTrigger="1")
    put(options, b"4", b"5", b"6", b"7")
    with pytest.raises(PySparkException, match=r"CheckpointError.*used with another checkpoint.*startingOffsets"):
        drain(spark, options, tmp_path / "second", tmp_path / "out")
    for group in ("spark", "fresh"):  # a new ledger does not know other checkpoints
        with pytest.raises(PySparkException, match=r"UnreadBatchError.*no task .* has read .*an empty output folder"):
            drain(
                spark, options, tmp_path / group, tmp_path / "out",
                group=group, startingOffsets="earliest", maxOffsetsPerTrigger="2",
            )  # fmt: skip
    assert left(options)[0] == 4
    assert sum(bodies(spark, tmp_path / "out").values()) == 3
    for group in (
        "spark",
        "fresh",
    ):  # the three batch numbers in the folder are skipped, and the batch comes again after them
        drain(
            spark, options, tmp_path / group, tmp_path / "out",
            group=group, failOnDataLoss="false", maxOffsetsPerTrigger="2",
        )  # fmt: skip
    assert bodies(spark, tmp_path / "out") == Counter([b"1", b"2", b"3", b"4", b"5", b"6", b"7"])
    assert left(options) == (0, 0, 0)


@pytest.mark.slow
def test_a_batch_committed_by_the_sink_only_is_written_once_and_not_lost_in_another_folder(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    checkpoint, out, other = (tmp_path / name for name in ("checkpoint", "out", "other"))
    elsewhere = {**options, "queue": "elsewhere"}
    put(elsewhere, b"a", b"b", b"c")
    drain(spark, elsewhere, tmp_path / "another", other, maxOffsetsPerTrigger="1")

    put(options, b"1")
    stream = (
        spark.readStream.format("aiozkqueue").options(**options).load().select("body").writeStream.format("parquet")
    )
    stream = stream.option("checkpointLocation", str(checkpoint)).trigger(processingTime="1 hour")
    query = started(lambda: stream.start(str(out)))
    while not (checkpoint / "commits" / "0").exists():
        assert query.exception() is None
        query.awaitTermination(1)
    query.stop()
    for name in ("0", ".0.crc"):  # the state after a driver was killed between the two commits
        (checkpoint / "commits" / name).unlink()
    put(options, b"2", b"3")
    shutil.copytree(checkpoint, tmp_path / "copy")
    with pytest.raises(PySparkException, match="UnreadBatchError"):
        drain(spark, options, tmp_path / "copy", other, maxOffsetsPerTrigger="1")
    assert left(options)[0] == 3
    drain(spark, options, checkpoint, out, maxOffsetsPerTrigger="1")
    assert bodies(spark, out) == Counter([b"1", b"2", b"3"])
    assert left(options) == (0, 0, 0)


@pytest.mark.slow
def test_a_released_batch_is_read_again_with_the_same_checkpoint_as_the_error_says(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    put(options, b"1", b"2", b"3")
    rows: list[bytes] = []

    def run(*, down: bool, **more: str) -> None:
        def sink(frame: object, number: int) -> None:
            found = [bytes(row.body) for row in frame.collect()]  # type: ignore[attr-defined]
            if down and number:
                msg = "the sink is down"
                raise RuntimeError(msg)
            rows.extend(found)

        stream = spark.readStream.format("aiozkqueue").options(**options, **more, maxOffsetsPerTrigger="1").load()
        writer = stream.select("body").writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(sink)
        assert started(writer.trigger(availableNow=True).start).awaitTermination(240)

    with pytest.raises(PySparkException, match="the sink is down"):
        run(down=True)

    async def release() -> int:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            return await session.queue("orders").admin.release_ledger("spark")

    wait_until_held(options, 1)  # the batch after it is released
    assert asyncio.run(release()) == 1
    with pytest.raises(PySparkException, match=r"ClaimLostError.* does not exist: .*Set failOnDataLoss=false"):
        run(down=False)
    assert left(options) == (2, 0, 0)
    run(down=False, failOnDataLoss="false")
    assert sorted(rows) == [b"1", b"2", b"3"]
    assert left(options) == (0, 0, 0)


def test_offsets_that_the_ledger_does_not_know_are_refused_before_any_acknowledgement(
    options: dict[str, str], drivers: list[Driver]
) -> None:
    put(options, *(b"%d" % n for n in range(10)))
    driver = begun(drivers, options)
    first = driver.latest(driver.beginning, 3)
    driver.read(driver.beginning, first)
    second = driver.latest(first, 3)
    driver.read(first, second)
    driver.reader._join()  # the batch after it is prepared
    assert left(options) == (7, 6, 1)
    strange: dict[str, dict[str, object]] = {
        "has ledger": {**second, "ledger": "0" * 32},
        "belong together": {"seq": second["seq"]},  # as an older version wrote it
        "restored from a backup": {**second, "seq": 100},
        "is not from a queue": {"orders": {"0": 3}},
    }
    for why, start in strange.items():
        for ask in (driver.latest, driver.reader.commit):
            with pytest.raises(CheckpointError, match=why):
                ask(start)
        with pytest.raises(CheckpointError, match=why):
            driver.reader.partitions(start, start if why == "is not from a queue" else {**start, "stream": "other"})
        assert left(options) == (7, 6, 1)
    third = driver.latest(second, 3)
    driver.read(second, third)
    driver.reader.commit(third)
    with pytest.raises(CheckpointError, match=r"has acknowledged batch 2.*an old copy of the checkpoint"):
        driver.latest(first)
    assert left(options) == (1, 1, 1)
    assert driver.read(driver.beginning, driver.beginning) == []  # Spark's request if no message waits yet
    for start, end in ((third, second), (second, second), (third, driver.beginning)):
        with pytest.raises(CheckpointError, match="has no messages: the checkpoint is damaged"):
            driver.reader.partitions(start, end)


@pytest.mark.parametrize("frozen", [False, True], ids=["no trigger", "availableNow"])
def test_a_query_that_is_refused_does_not_stop_the_query_that_uses_the_ledger(
    options: dict[str, str], drivers: list[Driver], *, frozen: bool
) -> None:
    put(options, *(b"%d" % n for n in range(6)))
    driver = begun(drivers, options)
    first = driver.latest(driver.beginning, 2)
    driver.read(driver.beginning, first)
    second = driver.latest(first, 2)
    strange = {**second, "ledger": "0" * 32}
    asks: list[tuple[str, Callable[[Driver], object]]] = [
        ("was used with another checkpoint", lambda other: other.latest(other.beginning)),
        ("belong together", lambda other: other.latest(strange)),
        ("belong together", lambda other: other.reader.commit(strange)),
        ("belong together", lambda other: other.reader.partitions(first, strange)),
        ("an old copy of the checkpoint", lambda other: other.latest({**first, "seq": -1})),
    ]
    for why, ask in asks:
        other = begun(drivers, options)
        if frozen:
            other.reader.prepareForTriggerAvailableNow()
        with pytest.raises(CheckpointError, match=why):
            ask(other)
    assert driver.read(first, second) == [b"2", b"3"]
    last = driver.latest(second, 2)
    assert driver.read(second, last) == [b"4", b"5"]
    driver.reader.commit(last)
    assert left(options) == (0, 0, 0)


def test_unread_batches_are_not_acknowledged_even_with_fail_on_data_loss_false(
    options: dict[str, str], drivers: list[Driver], caplog: pytest.LogCaptureFixture
) -> None:
    put(options, b"1", b"2", b"3")
    gone: dict[str, object] = {"seq": 7, "ledger": "f" * 32, "stream": "0" * 16}
    driver = begun(drivers, options, failOnDataLoss="false")
    assert driver.read({**gone, "seq": 6}, gone) == []  # a batch of another ledger, which no longer exists
    first = driver.latest(gone, 2)
    assert "failOnDataLoss=false, the stream continues" in caplog.text
    driver.reader.commit(gone)
    assert left(options) == (3, 2, 1)
    assert driver.latest(first, 2) != first  # it was not read, so it comes again
    again = driver.latest(first, 2)
    assert driver.read(first, again) == [b"1", b"2"]
    last = driver.latest(again, 2)
    assert driver.read(again, last) == [b"3"]
    driver.reader.commit(last)
    assert left(options) == (0, 0, 0)


def test_a_batch_that_its_tasks_have_not_read_to_the_end_is_not_acknowledged(
    options: dict[str, str], drivers: list[Driver]
) -> None:
    put(options, *(b"%d" % n for n in range(4)))
    driver = begun(drivers, options, minPartitions="2")
    end = driver.latest(driver.beginning)
    first, second = driver.reader.partitions(driver.beginning, end)
    assert len(driver.read_shares([first])) == 2
    with closing(cast("Generator[pa.RecordBatch]", driver.reader.read(second))) as cut_off:
        assert next(cut_off).num_rows == 2  # reads all rows, but the task does not finish
    for ask in (driver.latest, driver.reader.commit):
        with pytest.raises(UnreadBatchError, match="no task of this query has read all of it"):
            ask(end)
    assert left(options) == (4, 4, 1)
    assert len(driver.read_shares([second])) == 2
    assert len(driver.read_shares([second])) == 2  # a second attempt of the task, as with speculation
    assert driver.latest(end) == end
    assert left(options) == (0, 0, 0)


def test_reads_of_one_checkpoint_do_not_count_for_another(options: dict[str, str], drivers: list[Driver]) -> None:
    put(options, b"1", b"2")
    lost = begun(drivers, options)
    read = lost.latest(lost.beginning)
    assert len(lost.read(lost.beginning, read)) == 2  # the sink failed
    with pytest.raises(CheckpointError, match="1 of its batches are not acknowledged"):
        begun(drivers, options).latest(lost.beginning)
    new = begun(drivers, options, startingOffsets="ledger")
    same = new.latest(new.beginning)
    assert (same["seq"], same["ledger"]) == (read["seq"], read["ledger"])
    with pytest.raises(UnreadBatchError):  # an old folder has its number
        new.latest(same)
    assert len(new.read(new.beginning, same)) == 2
    with pytest.raises(zq.ClaimLostError, match="taken over"):
        lost.read_shares(lost.reader.partitions(lost.beginning, read))
    assert new.latest(same) == same
    assert left(options) == (0, 0, 0)


def test_a_batch_that_only_an_earlier_run_has_read_stays_until_the_next_is_read(
    options: dict[str, str], drivers: list[Driver]
) -> None:
    put(options, b"1", b"2")
    killed = begun(drivers, options)
    first = killed.latest(killed.beginning, 1)
    killed.read(killed.beginning, first)  # the sink has committed it, and the driver is killed before Spark's commit

    successor = begun(drivers, options)  # its sink skips the batch, and Spark does not request its partitions
    second = successor.latest(first, 1)
    assert second["seq"] == 1
    assert left(options) == (2, 2, 1)  # whether the folder is the same is not known yet
    for driver in (successor, begun(drivers, options)):
        with pytest.raises(UnreadBatchError):  # the folder is another one, because it also has the next number
            driver.latest(second)
    assert left(options) == (2, 2, 1)
    successor = begun(drivers, options)
    successor.read(first, second)
    assert successor.latest(second) == second
    assert left(options) == (0, 0, 0)


def test_a_task_of_a_replaced_driver_marks_nothing(options: dict[str, str], drivers: list[Driver]) -> None:
    put(options, b"1")
    zombie = begun(drivers, options)
    end = zombie.latest(zombie.beginning)
    shares = zombie.reader.partitions(zombie.beginning, end)
    successor = begun(drivers, options)
    successor.reader.partitions(successor.beginning, end)
    with pytest.raises(zq.ClaimLostError, match="taken over"):
        zombie.read_shares(shares)
    with pytest.raises(UnreadBatchError):
        successor.latest(end)


def test_a_released_ledger_forgets_what_was_read(options: dict[str, str], drivers: list[Driver]) -> None:
    put(options, b"1", b"2")
    driver = begun(drivers, options, minPartitions="2")
    end = driver.latest(driver.beginning)
    driver.read(driver.beginning, end)

    async def release() -> tuple[int, int]:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            queue = session.queue("orders")
            (info,) = await queue.admin.ledgers()
            return info.messages, await queue.admin.release_ledger("spark")

    assert asyncio.run(release()) == (2, 2)
    assert sorted(drained(options)) == [b"1", b"2"]
