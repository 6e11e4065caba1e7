"""Spark over mutual TLS, as a user with a private queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from aiozkqueue.testing import EmbeddedZooKeeper, ServerOptions
from tests.spark.test_batch import numbers, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from aiozkqueue.testing import Certificates

pytestmark = pytest.mark.timeout(300)


def test_driver_and_tasks_present_their_certificate_and_their_credentials(
    spark: SparkSession,
    embedded_server: Callable[[ServerOptions], EmbeddedZooKeeper],
    queue_root: str,
    tmp_path: Path,
    certificates: Certificates,
) -> None:
    server = embedded_server(ServerOptions(tls=certificates.server_tls(client_certificate=True), fsync=False))
    (tmp_path / "credentials").write_text("digest:alice:al1ce")
    options = {
        "hosts": f"localhost:{server.node.ports.secure}",
        "root": queue_root,
        "queue": "orders",
        "connectTimeout": "60",
        "tlsCa": str(certificates.authority),
        "tlsCert": str(certificates.client),
        "authFile": str(tmp_path / "credentials"),
    }
    write(numbers(spark, 100), options)
    assert spark.read.format("aiozkqueue").options(**options).load().count() == 100
    untrusting = {name: value for name, value in options.items() if not name.startswith("tls")} | {
        "connectTimeout": "5"
    }
    with pytest.raises(PySparkException, match="ConnectionLostError"):
        spark.read.format("aiozkqueue").options(**untrusting).load().count()
    with pytest.raises(PySparkException, match="not a usable PEM file"):
        spark.read.format("aiozkqueue").options(**{**options, "tlsCa": str(tmp_path / "credentials")}).load().count()
