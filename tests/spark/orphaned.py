"""A driver whose stream runs until it is killed: ``python -m tests.spark.orphaned HOSTS ROOT FOLDER``.

When the first batch has been written, it stores the process id of its JVM in the file `JVM` in the folder.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

JVM = "jvm"


def main(hosts: str, root: str, folder: Path) -> None:
    """Write the messages of a queue to files."""
    from tests.spark.local import start  # noqa: PLC0415 - not for Spark's workers

    spark = start(folder, {}, cores=2)
    stream = spark.readStream.format("aiozkqueue").options(hosts=hosts, root=root).load("orders")
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(processingTime="100 milliseconds").start(str(folder / "out"))
    query.processAllAvailable()
    gateway: Any = spark.sparkContext._gateway
    (folder / "draft").write_text(str(gateway.jvm.java.lang.ProcessHandle.current().pid()))
    (folder / "draft").rename(folder / JVM)
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
