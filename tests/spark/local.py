"""The start of Spark for tests: in local mode, with the settings of `conf`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

PROJECT = Path(__file__).parents[2]
#: The folder of Spark's default settings, as in any installation.
CONF = {"SPARK_CONF_DIR": str(Path(__file__).parent / "conf")}

#: The folder of the module that Spark's Python daemons import at their start.
PRELOADED = Path(__file__).parent / "preloaded"


def environment(java_home: str) -> dict[str, str]:
    """The environment variables of Spark and its Python workers."""
    path = os.pathsep.join([str(PRELOADED), str(PROJECT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {
        **CONF,
        "JAVA_HOME": java_home,
        "PYTHONPATH": path,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def start(folder: Path, more: Mapping[str, str], *, cores: int = 4) -> SparkSession:
    """Start Spark with this number of concurrent tasks."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - takes a second

    settings = {
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **more,
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName("aiozkqueue tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
