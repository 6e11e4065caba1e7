"""The calls that Spark's tasks and drivers make to the writers, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from aiozkqueue.spark import sink, writing
from aiozkqueue.spark.options import parse_options
from aiozkqueue.spark.writing import QueueWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pytest

BODY = StructType([StructField("body", BinaryType())])


class Partition:
    """The context of a task in the first batch of a query."""

    run = "run"

    @classmethod
    def get(cls) -> Partition:
        return cls()

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return 0

    def getLocalProperty(self, name: str) -> str:  # noqa: N802 - Spark's name
        return {
            "sql.streaming.queryId": "query",
            "streaming.sql.batchId": "0",
            "spark.jobGroup.id": self.run,
        }[name]


def use(context: type[Partition], patch: pytest.MonkeyPatch) -> None:
    """Have the writers use this context."""
    patch.setattr(writing, "TaskContext", context)
    patch.setattr(sink, "TaskContext", context)


def writer_of(options: dict[str, str]) -> QueueWriter:
    return QueueWriter(BODY, parse_options({**options, "rowsPerTransaction": "2"}))


def rows_of(bodies: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"body": list(bodies)}, schema=pa.schema([("body", pa.binary())]))
