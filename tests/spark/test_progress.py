"""The progress of a query shows how many messages its queue still holds."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from tests.spark.test_batch import put
from tests.spark.test_parts import use_bundles
from tests.spark.test_stream import Files

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(
    "bundles", [pytest.param(False, marks=pytest.mark.slow), True], ids=["single items", "bundles"]
)
def test_the_progress_of_a_query_has_the_waiting_held_delayed_and_dead_messages(
    spark: SparkSession, options: dict[str, str], tmp_path: Path, *, bundles: bool
) -> None:
    if bundles:
        use_bundles(options)
    put(options, *(b"%d" % n for n in range(300)))

    async def more() -> None:
        async with zq.connect(options["hosts"], root=options["root"]) as session:
            queue = session.queue("orders")
            await queue.put(b"later", delay=86_400)
            async with queue.consume(until_idle=0) as deliveries:
                async for delivery in deliveries:
                    await delivery.reject("nothing to pay")
                    break

    asyncio.run(more())
    query = Files(spark, options, tmp_path).start(once=True, maxOffsetsPerTrigger="100")
    assert query.awaitTermination(240)
    (first, *_) = [progress for progress in query.recentProgress if progress["numInputRows"]]
    (source,) = first["sources"]
    reported = source["latestOffset"]
    lag = json.loads(reported) if isinstance(reported, str) else reported
    assert lag == {"waiting": 199, "in_flight": 100, "delayed": 1, "dead_letters": 1}
