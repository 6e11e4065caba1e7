"""The programs of `docs/spark.md` run, block by block, with a folder as the shop."""

from __future__ import annotations

import asyncio
import gzip
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions

import aiozkqueue as zq
from tests.docs.pages import blocks
from tests.spark.test_batch import drained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


class Guide:
    """Runs the page's programs as one, in their order."""

    def __init__(self, spark: SparkSession, hosts: str, shop: Path) -> None:
        invoices = spark.range(3).select(functions.col("id").cast("string").alias("body"))
        self._names: dict[str, object] = {"spark": spark, "invoices": invoices}
        self._programs = iter([block for block in blocks(PAGE) if block.language == "py"])
        self._places = {"h1:2181,h2:2181": hosts, "h1:2181": hosts, "s3a://shop": str(shop)}
        self._spark = spark

    def run(self) -> None:
        """Run the next; what it streams is run until there is nothing more."""
        program = next(self._programs)
        text = program.text
        for place, here in self._places.items():
            text = text.replace(place, here)
        exec(compile("\n" * (program.line - 1) + text, PAGE, "exec"), self._names)
        for query in self._spark.streams.active:
            try:
                query.processAllAvailable()
            finally:
                query.stop()

    def over(self) -> bool:
        return next(self._programs, None) is None


def test_every_program_of_the_guide_runs(
    spark: SparkSession, zookeeper: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = f"{zookeeper}/guide-{os.urandom(4).hex()}"
    orders, invoices = ({"hosts": hosts, "root": "/zms", "queue": queue} for queue in ("orders", "invoices"))

    async def prepare() -> None:
        async with zq.connect(hosts) as session:
            await session.queue("orders").configure(zq.QueueConfig(history=zq.History()))
            await session.queue("orders").put_many([b"1", b"2"])

    asyncio.run(prepare())
    guide = Guide(spark, hosts, tmp_path)
    guide.run()
    assert sorted(drained(invoices)) == [b"0", b"1", b"2"]
    guide.run()
    assert {bytes(row.body) for row in spark.read.parquet(str(tmp_path / "files")).collect()} == {b"1", b"2"}
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.json").write_text('{"id": 1, "cents": 250}\n')
    guide.run()
    assert drained(orders) == [b'{"id": 1, "cents": 250}']
    with gzip.open(tmp_path / "orders.jsonl.gz", "wt") as file:
        file.write('{"id": 2}\n{"id": 3}\n')
    guide.run()
    assert {bytes(row.body) for row in spark.read.parquet(str(tmp_path / "orders")).collect()} == {
        b'{"id": 2}',
        b'{"id": 3}',
    }
    assert capsys.readouterr().out.startswith("Percentiles(p50=")
    assert guide.over()
