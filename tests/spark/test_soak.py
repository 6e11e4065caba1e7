"""A short run of the soak: no message is lost, whatever changes between queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.soak import Soak

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_message_is_lost_when_settings_change_between_queries(
    spark: SparkSession,
    zookeeper: str,
    queue_root: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    soak = Soak(spark, zookeeper, queue_root, tmp_path, seed=7)
    for _ in range(8):
        soak.round()
    tally = soak.settle()
    record_property("figures", f"Spark: {len(tally.put)} messages, {dict(tally.ended)}, doubled {tally.doubled}")
    assert tally.lost == set()
    assert tally.untakeable == set()
    assert "did not end" not in tally.ended
    assert tally.written > 0
