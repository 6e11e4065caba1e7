"""The Spark example does what its first lines describe, as a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.local import CONF

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozkqueue.testing import EmbeddedZooKeeper

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_pipeline.py"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_orders_go_through_spark_and_the_audit_records_the_end_of_each(
    embedded_server: Callable[[], EmbeddedZooKeeper], tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    project = os.pathsep.join([str(EXAMPLE.parents[1]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(tmp_path / "audit")],
        env=os.environ | CONF | {"AIOZKQUEUE_HOSTS": embedded_server().hosts, "PYTHONPATH": project},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"2000 records moved to {tmp_path / 'audit'}",
        "orders: 20 dead-lettered",
        "orders: 1980 finished",
        "orders: 20 dead letters: nothing to pay",
    ]
