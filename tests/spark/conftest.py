"""One small Spark for all tests of a worker, without listening services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest

from aiozkqueue.testing.runtime import ServerUnavailableError
from aiozkqueue.testing.spark import java_home
from tests.spark.local import environment, start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.fixture(scope="session", autouse=True)
def _zone() -> None:
    """Read the default time zone from the disk before a loop runs, as the process of a driver does."""
    ZoneInfo("UTC")


@pytest.fixture(scope="session")
def spark_events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Spark's event log."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="session")
def spark_java(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The home folder of a Java with which Spark starts."""
    try:
        return java_home(tmp_path_factory.mktemp("java"))
    except ServerUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_events: Path, spark_java: str) -> Iterator[SparkSession]:
    """A local Spark with four concurrent tasks."""
    pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(spark_java).items():
            patch.setenv(name, value)
        events = {"enabled": "true", "dir": spark_events.as_uri(), "compress": "false"}
        session = start(folder, {f"spark.eventLog.{name}": value for name, value in events.items()})
        yield session
        gateway: Any = session.sparkContext._gateway
        session.stop()
        if gateway is not None:
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(30)


@pytest.fixture
def options(zookeeper: str, queue_root: str) -> dict[str, str]:
    """The options of every reader and writer."""
    return {"hosts": zookeeper, "root": queue_root, "queue": "orders"}
