"""The examples of Spark streams do what their first lines describe, each as a separate process."""

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

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def run(name: str, hosts: str, folder: Path) -> list[str]:
    """Run an example, and return its lines."""
    pytest.importorskip("pyarrow")
    project = os.pathsep.join([str(EXAMPLES.parent), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), str(folder)],
        env=os.environ | CONF | {"AIOZKQUEUE_HOSTS": hosts, "PYTHONPATH": project},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_each_order_is_in_the_table_once_and_a_second_run_continues(
    embedded_server: Callable[[], EmbeddedZooKeeper], tmp_path: Path
) -> None:
    hosts = embedded_server().hosts
    assert run("spark_to_parquet.py", hosts, tmp_path) == [
        "1001 rows in 3 versions",
        "1001 messages, 1 without an order",
        "500000.00 cents",
    ]
    assert run("spark_to_parquet.py", hosts, tmp_path)[1] == "2002 messages, 2 without an order"


def test_a_job_for_kafka_runs_on_queues_with_its_keys_and_headers(
    embedded_server: Callable[[], EmbeddedZooKeeper], tmp_path: Path
) -> None:
    assert run("spark_from_kafka.py", embedded_server().hosts, tmp_path) == [
        "400 invoices for 500 orders, 400 with their key and headers"
    ]


def test_a_stream_and_consumers_share_the_messages_of_a_queue(
    embedded_server: Callable[[], EmbeddedZooKeeper], tmp_path: Path
) -> None:
    assert run("spark_beside_consumers.py", embedded_server().hosts, tmp_path) == [
        "20000 of 20000 messages are done, 0 of them twice",
        "the consumers took some, and the stream took the others",
    ]
