"""How Spark is started for tests: locally, small, and without anything that listens."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

PROJECT = Path(__file__).parents[2]


def environment(java_home: str) -> dict[str, str]:
    """What Spark and its Python workers need to be told."""
    path = os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {"JAVA_HOME": java_home, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}


def start(folder: Path, more: Mapping[str, str]) -> SparkSession:
    """Start it, with four cores' worth of tasks."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - takes a second

    settings = {
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.codegen.wholeStage": "false",  # compiling costs more than these few rows would
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        **more,
    }
    builder = SparkSession.builder.master("local[4]").appName("aiozkqueue tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
