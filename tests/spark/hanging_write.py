"""A driver whose write never ends: ``python -m tests.spark.hanging_write HOSTS ROOT FOLDER``.

It stores the rows of one of two partitions. The file `JVM` in the folder has the process id of its JVM.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.spark.orphaned import JVM

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

#: Rows per partition.
ROWS = 1000


def main(hosts: str, root: str, folder: Path) -> None:
    """Write rows into a queue."""
    from pyspark.sql import functions  # noqa: PLC0415 - not for Spark's workers

    from tests.spark.local import start  # noqa: PLC0415 - the same

    def hang(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch["id"][0].as_py() >= ROWS:
                time.sleep(3600)
            yield batch

    spark = start(folder, {}, cores=2)
    gateway: Any = spark.sparkContext._gateway
    (folder / JVM).write_text(str(gateway.jvm.java.lang.ProcessHandle.current().pid()))
    rows = spark.range(0, 2 * ROWS, numPartitions=2).mapInArrow(hang, "id long")
    payloads = rows.select(functions.col("id").cast("string").cast("binary").alias("body"))
    payloads.write.format("aiozkqueue").options(hosts=hosts, root=root).mode("append").save("orders")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
