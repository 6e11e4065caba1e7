"""The programs of `docs/spark.md` and `docs/spark` run block by block, with a local folder as storage."""

from __future__ import annotations

import asyncio
import gzip
import os
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import DataFrame, functions

import aiozkqueue as zq
from tests.docs.pages import blocks
from tests.spark.test_batch import drained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

DOCS = Path(__file__).parents[2] / "docs"
READS = ["spark.md", "spark/sources.md", "spark/sinks.md"]
FUNCTIONS = ["spark/foreach-batch.md"]
FILES = ["spark/files.md", "spark/running.md", "spark/tuning.md"]


class Guide:
    """Runs the programs of the pages in order, as one program."""

    def __init__(self, spark: SparkSession, zookeeper: str, shop: Path, pages: list[str]) -> None:
        self.hosts = hosts = f"{zookeeper}/guide-{os.urandom(4).hex()}"
        self.shop = shop
        invoices = spark.range(3).select(functions.col("id").cast("string").alias("body"))
        self._names: dict[str, object] = {"spark": spark, "invoices": invoices}
        self._programs = iter(
            [(page, block) for page in pages for block in blocks(DOCS / page) if block.language == "py"]
        )
        self._places = {"h1:2181,h2:2181": hosts, "h1:2181": hosts, "s3a://shop": str(shop)}
        self._spark = spark

    def run(self) -> None:
        """Run the next program. Its streams run until no input is left."""
        page, program = next(self._programs)
        text = program.text
        for place, here in self._places.items():
            text = text.replace(place, here)
        exec(compile("\n" * (program.line - 1) + text, page, "exec"), self._names)
        for query in self._spark.streams.active:
            try:
                query.processAllAvailable()
            finally:
                query.stop()

    def named(self, name: str) -> DataFrame:
        """Return a data frame that a program has made."""
        frame = self._names[name]
        assert isinstance(frame, DataFrame)
        return frame

    def over(self) -> bool:
        return next(self._programs, None) is None

    def put(self, queue: str, body: bytes, priority: int = 0) -> None:
        async def send() -> None:
            async with zq.connect(self.hosts) as session:
                await session.queue(queue).put(body, priority=priority)

        asyncio.run(send())

    def left(self, queue: str) -> list[bytes]:
        """Take all messages of a queue."""
        return sorted(drained({"hosts": self.hosts, "root": "/zms", "queue": queue}))


@pytest.mark.slow
def test_the_programs_of_sources_and_sinks_run(spark: SparkSession, zookeeper: str, tmp_path: Path) -> None:
    guide = Guide(spark, zookeeper, tmp_path, READS)
    guide.put("orders", b"1")
    guide.put("orders", b"2")
    guide.run()
    assert guide.left("invoices") == [b"0", b"1", b"2"]
    guide.run()
    assert {bytes(row.body) for row in spark.read.parquet(str(tmp_path / "files")).collect()} == {b"1", b"2"}
    guide.put("orders", b'{"id": 7, "cents": 12.345}')
    guide.run()
    (row,) = guide.named("lines").collect()
    assert (row.id, row.cents) == (7, Decimal("12.35"))
    assert row.message
    assert guide.left("orders") == [b'{"id": 7, "cents": 12.345}']
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.json").write_text('{"id": 1, "cents": 250}\n')
    guide.run()
    assert guide.left("orders") == [b'{"id": 1, "cents": 250}']
    guide.put("orders", b"copied", priority=3)
    guide.run()
    assert guide.left("copies") == guide.left("orders") == [b"copied"]
    assert guide.over()


def test_the_functions_for_each_batch_run(spark: SparkSession, zookeeper: str, tmp_path: Path) -> None:
    guide = Guide(spark, zookeeper, tmp_path, FUNCTIONS)
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.json").write_text('{"id": 1, "cents": 250}\n{"id": 2, "cents": 0}\n')
    guide.run()
    assert guide.left("invoices") == [b'{"id": 1, "cents": 250}']
    assert guide.left("reminders") == [b'{"id": 2, "cents": 0}']
    guide.put("orders", b'{"id": 4, "cents": 1}')
    guide.put("orders", b'{"id": 5}')
    guide.run()
    rows = spark.read.parquet(str(tmp_path / "checked")).select("id", "cents").collect()
    assert [tuple(row) for row in rows] == [(4, 1)]
    letters = spark.read.format("aiozkqueue").options(hosts=guide.hosts, content="deadLetters").load("orders")
    assert [(bytes(letter.body), letter.reason) for letter in letters.collect()] == [
        (b'{"id": 5}', "stream 'check': no amount")
    ]
    assert guide.over()


def test_the_programs_for_files_and_audits_run(
    spark: SparkSession, zookeeper: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = Guide(spark, zookeeper, tmp_path, FILES)

    async def prepare() -> None:
        async with zq.connect(guide.hosts) as session:
            await session.queue("orders").configure(zq.QueueConfig(history=zq.History()))

    asyncio.run(prepare())
    with gzip.open(tmp_path / "orders.jsonl.gz", "wt") as file:
        file.write('{"id": 2}\n{"id": 3}\n')
    guide.run()
    assert {bytes(row.body) for row in spark.read.parquet(str(tmp_path / "orders")).collect()} == {
        b'{"id": 2}',
        b'{"id": 3}',
    }
    assert capsys.readouterr().out.startswith("Percentiles(p50=")
    assert guide.over()
