"""A Spark source that reads nothing: the lower limit of the cost of every source in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import BinaryType, StructField, StructType

from .measure import BODY

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Rows of an Arrow batch.
_ROWS: Final = 10_000


class _Rows(InputPartition):
    def __init__(self, number: int) -> None:
        self.number = number


class NothingReader(DataSourceStreamReader):
    """Batches of constant rows, in two partitions."""

    def __init__(self, messages: int, most: int) -> None:
        self._messages = messages
        self._most = most

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the number of rows before the first batch."""
        return {"rows": 0}

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: ARG002, N802 - Spark's name
        """Return the number of rows up to the end of the next batch."""
        return {"rows": min(self._messages, start["rows"] + self._most)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[_Rows]:
        """Divide a batch."""
        number = end["rows"] - start["rows"]
        return [_Rows(number // 2), _Rows(number - number // 2)]

    # PyArrow has no types for the classes in its compiled part.
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # pyright: ignore[reportUnknownParameterType]
        """Make the rows."""
        assert isinstance(partition, _Rows)  # noqa: S101 - made by `partitions`
        for start in range(0, partition.number, _ROWS):
            bodies = pa.array([BODY] * min(_ROWS, partition.number - start), pa.binary())
            yield pa.RecordBatch.from_arrays([bodies], names=["body"])


class NothingSource(DataSource):
    """A source that needs no server."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "nothing"

    def schema(self) -> StructType:
        """Return the columns."""
        return StructType([StructField("body", BinaryType())])

    def streamReader(self, schema: StructType) -> NothingReader:  # noqa: ARG002, N802 - Spark's name
        """Return the reader."""
        return NothingReader(int(self.options["messages"]), int(self.options["most"]))
