"""One Spark for all tests of a worker, small, and without anything that listens."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aiozkqueue.testing.runtime import ServerUnavailableError
from aiozkqueue.testing.spark import java_home

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def spark_events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark writes what it did."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_events: Path) -> Iterator[SparkSession]:
    """A local Spark with four cores' worth of tasks."""
    pytest.importorskip("pyarrow")
    from pyspark.sql import SparkSession  # noqa: PLC0415 - takes a second

    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        try:
            patch.setenv("JAVA_HOME", java_home(folder / "java"))
        except ServerUnavailableError as error:
            pytest.skip(str(error))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = (
            SparkSession.builder.master("local[4]")
            .appName("aiozkqueue tests")
            .config("spark.driver.memory", "1g")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "4")
            .config("spark.sql.codegen.wholeStage", "false")  # compiling costs more than these few rows would
            .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
            .config("spark.sql.adaptive.enabled", "false")
            .config("spark.local.dir", str(folder / "local"))
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.eventLog.enabled", "true")
            .config("spark.eventLog.dir", spark_events.as_uri())
            .config("spark.eventLog.compress", "false")
            .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        yield session
        gateway: Any = session.sparkContext._gateway
        session.stop()
        if gateway is not None:
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(30)


@pytest.fixture
def options(zookeeper: str, queue_root: str) -> dict[str, str]:
    """What every reader and writer is told."""
    return {"hosts": zookeeper, "root": queue_root, "queue": "orders"}
