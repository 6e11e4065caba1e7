"""A message that always fails its query: smaller batches isolate it, and it is rejected when it fails alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions
from pyspark.sql.types import LongType

import aiozkqueue as zq
from aiozkqueue.layout import BundleName, name_at
from aiozkqueue.operations.ledger_pages import Manifest, mark, read_page
from tests.spark.streams import started
from tests.spark.test_batch import put
from tests.spark.test_ledger import DyingClient, _DriverKilledError, bodies_of, driver, fill
from tests.spark.test_stream import left

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from aiozkqueue.batches.ledger import Ledger

pytestmark = pytest.mark.timeout(300)


def dead(options: Mapping[str, str]) -> list[tuple[bytes, str]]:
    async def look() -> list[tuple[bytes, str]]:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            return [(letter.body, letter.reason) for letter in await session.queue("orders").dead_letters.peek(100)]

    return asyncio.run(look())


@pytest.mark.slow
def test_a_row_whose_function_raises_becomes_a_dead_letter_and_the_other_rows_are_written(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    put(options, *(b"%d" % n for n in range(9)), b"no number")
    number = functions.udf(lambda body: int(bytes(body)), LongType())

    def run(**more: str) -> None:
        stream = (
            spark.readStream.format("aiozkqueue").options(**options, **more).load().select(number("body").alias("n"))
        )
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = started(lambda: writer.trigger(availableNow=True).start(str(tmp_path / "out")))
        assert query.awaitTermination(240)

    with pytest.raises(PySparkException, match="no number"):
        run()
    failures = 0
    while True:
        try:
            run(maxBatchAttempts="1")
        except PySparkException as error:
            failures += 1
            assert "no number" in str(error)  # noqa: PT017 - the number of failures depends on the position of the message
            assert failures < 4
        else:
            break
    rows = [row.n for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert Counter(rows) == Counter(range(9))
    [(body, reason)] = dead(options)
    assert body == b"no number"
    assert reason == "stream 'spark': the query failed 1 times on a batch of only this message"
    assert left(options) == (0, 0, 0)


class Query:
    """A query that fails with certain messages, and is restarted each time."""

    def __init__(self, poison: set[str], most: int) -> None:
        self._poison = poison
        self._most = most
        self.start = -1
        self.failures = 0
        self.batches = 0
        self.rows: list[str] = []

    async def run(self, ledger: Ledger) -> None:
        zookeeper = ledger._epoch.zookeeper
        while (number := await ledger.next_batch(self.start, None)) != self.start:
            while True:
                handed = await ledger.hand_out(number, "stream", self._most)
                bodies = await bodies_of(ledger, handed.pages)
                assert len(bodies) == sum(page.messages for page in handed.pages)
                await handed.reading.note(zookeeper)
                if self._poison.isdisjoint(bodies):
                    break
                self.failures += 1
            self.rows += bodies
            self.batches += 1
            await ledger.acknowledge(number, "stream")
            self.start = number


@pytest.mark.parametrize("bundle", [1, 64])
@pytest.mark.parametrize("most", [1, 3])
async def test_the_few_failing_messages_among_many_are_found_in_few_attempts(
    zookeeper: str, queue_root: str, monkeypatch: pytest.MonkeyPatch, most: int, bundle: int
) -> None:
    monkeypatch.setattr("aiozkqueue.batches.making.PAGE", 60)
    bodies = await fill(zookeeper, queue_root, 1000, bundle)
    poison = {"7", "8", "999"}
    query = Query(poison, most)
    async with driver(zookeeper, queue_root) as ledger, zq.connect(zookeeper, root=queue_root) as session:
        await query.run(ledger)
        queue = session.queue("orders")
        letters = await queue.dead_letters.peek(10)
        assert {letter.body.decode() for letter in letters} == poison
        assert {letter.reason for letter in letters} == {
            f"stream 'spark': the query failed {most} times on a batch of only this message"
        }
        assert Counter(query.rows) == Counter(bodies) - Counter(poison)
        assert (await queue.size(), (await queue.stats()).in_flight, await ledger.batches()) == (0, 0, [])
    assert query.failures <= 3 * most + most + 8
    assert query.batches <= 80


@pytest.mark.slow
@pytest.mark.parametrize("bundle", [1, 4])
@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
async def test_a_driver_killed_at_any_write_of_a_division_loses_and_duplicates_nothing(
    zookeeper: str, queue_root: str, monkeypatch: pytest.MonkeyPatch, bundle: int, *, applied: bool
) -> None:
    monkeypatch.setattr("aiozkqueue.batches.making.PAGE", 5)
    step = 0
    while True:
        step += 1
        root = f"{queue_root}/{step}"
        bodies = await fill(zookeeper, root, 17, bundle)
        query = Query({"9"}, 1)
        async with driver(zookeeper, root) as ledger:
            handed = await ledger.hand_out(await ledger.next_batch(-1, None), "stream", 1)
            page = handed.pages[0]
            entry = (await read_page(ledger._epoch.zookeeper.read, page.path))[-1]
            name = BundleName.parse(name_at(entry.place))
            bad = entry.id if name is None else name.last
            await mark(ledger._epoch.zookeeper, page.path, bad, "of an attempt", handed.attempt)
        died = False
        async with driver(zookeeper, root, step, applied=applied) as ledger:
            try:
                await ledger.hand_out(0, "stream", 1)
            except _DriverKilledError:
                died = True
        async with driver(zookeeper, root) as ledger:
            await query.run(ledger)
            assert await ledger.batches() == []
        async with zq.connect(zookeeper, root=root) as session:
            (letter,) = await session.queue("orders").dead_letters.peek(10)
            assert Counter([*query.rows, letter.body.decode()]) == Counter(bodies), f"killed at write {step}"
            assert await session.queue("orders").size() == 0
        if not died:
            break
    assert step > 6


async def test_a_release_during_a_division_releases_the_whole_batch(zookeeper: str, queue_root: str) -> None:
    bodies = await fill(zookeeper, queue_root, 20)
    async with driver(zookeeper, queue_root) as ledger:
        await ledger.hand_out(await ledger.next_batch(-1, None), "stream", 1)
        ledger._epoch.zookeeper = DyingClient(ledger._epoch.zookeeper, 3, applied=True)  # type: ignore[assignment]
        with pytest.raises(_DriverKilledError):
            await ledger.hand_out(0, "stream", 1)
    async with zq.connect(zookeeper, root=queue_root) as session:
        queue = session.queue("orders")
        assert await queue.admin.release_ledger("spark") == 20
        assert sorted(message.body.decode() for message in await queue.peek(100)) == sorted(bodies)
        assert (await queue.stats()).in_flight == 0


def test_a_manifest_is_read_back_and_an_older_one_without_the_new_fields_is_read() -> None:
    full = Manifest(7, done=True, attempts=2, chunk=3, rejected=1, parent=0, parents=(0, 4))
    for manifest in (full, Manifest(0), Manifest(5)):
        assert Manifest.decode(manifest.encode()) == manifest
    assert Manifest.decode(b'{"items": 4}') == Manifest(4)
    with pytest.raises(zq.PayloadError, match="does not decode"):
        Manifest.decode(b"[]")
