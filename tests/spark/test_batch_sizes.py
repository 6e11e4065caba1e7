"""Batches of a limited size in bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.session.internals import core_of
from aiozkqueue.spark.options import parse_options
from tests.spark.test_batch import put
from tests.spark.test_parts import use_bundles
from tests.spark.test_stream import Files, left

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


async def test_a_batch_ends_before_its_size_exceeds_the_limit(zookeeper: str, queue_root: str) -> None:
    sizes = [400, 400, 400, 5000, 10, 10, 2000]
    async with zq.connect(zookeeper, root=queue_root) as session:
        await session.queue("orders").configure(zq.QueueConfig(bundle=1))
        for size in sizes:
            await session.queue("orders").put(b"x" * size)
        ledger = Ledger(core_of(session).handle("orders"), "spark", most_bytes=1000)
        found, number = [], -1
        while (after := await ledger.next_batch(number, None)) != number:
            found.append(sum(page.messages for page in await ledger.pages(after)))
            await ledger.acknowledge(after)
            number = after
        assert found == [2, 1, 1, 2, 1]  # 5,000 bytes alone, because a batch has at least one message


@pytest.mark.parametrize(
    "bundles", [pytest.param(False, marks=pytest.mark.slow), True], ids=["single items", "bundles"]
)
def test_a_stream_with_a_limit_in_bytes_writes_each_message_once(
    spark: SparkSession, options: dict[str, str], tmp_path: Path, *, bundles: bool
) -> None:
    if bundles:
        use_bundles(options)
    bodies = [b"%04d" % n * 250 for n in range(600)]  # a thousand bytes each
    put(options, *bodies)
    files = Files(spark, options, tmp_path)
    query = files.start(once=True, maxBytesPerTrigger="200k", maxOffsetsPerTrigger="500")
    assert query.awaitTermination(240)
    batches = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert sum(batches) == 600
    assert max(batches) <= 204
    assert len(batches) <= (6 if bundles else 3)
    assert sorted(files.bodies()) == sorted(bodies)
    assert left(options) == (0, 0, 0)


@pytest.mark.parametrize(("given", "size"), [("1", 1), ("64m", 64 * 2**20), ("2KB", 2048)])
def test_a_size_is_given_in_bytes_or_with_a_unit(given: str, size: int) -> None:
    assert parse_options({"hosts": "h:1", "queue": "q", "maxBytesPerTrigger": given}).max_bytes == size


@pytest.mark.parametrize("given", ["0", "-1", "64x", "", "1.5m", "999999999999999g"])
def test_other_sizes_are_refused(given: str) -> None:
    with pytest.raises(zq.InvalidOptionError, match="give a number of bytes"):
        parse_options({"hosts": "h:1", "queue": "q", "maxBytesPerTrigger": given})


@pytest.mark.parametrize("given", ["0", "-1", "+1", "1.0", "", str(2**63), "9" * 5000])
@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "maxBatchAttempts"])
def test_a_number_of_messages_or_attempts_has_63_bits(name: str, given: str) -> None:
    options = {"hosts": "h:1", "queue": "q"}
    with pytest.raises(zq.InvalidOptionError, match=f"{name}=.*give an integer from 1 to {2**63 - 1}"):
        parse_options({**options, name: given})
    assert parse_options({**options, "maxOffsetsPerTrigger": str(2**63 - 1)}).max_offsets == 2**63 - 1
