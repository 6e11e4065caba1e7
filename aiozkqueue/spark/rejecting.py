"""Dead letters by decision: writes a frame with the ids of messages of the current batch, and the reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StringType

from aiozkqueue.batches.rejections import Rejections
from aiozkqueue.errors import InvalidOptionError, PayloadError

from .batching import with_rows
from .columns import MOST_REASON
from .connection import linked

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from .connection import Link
    from .options import Options

_COLUMNS: Final = {"id", "reason"}


@dataclass
class Rejected(WriterCommitMessage):
    """The report of a task."""

    messages: int


class DeadLetterWriter(DataSourceArrowWriter):
    """Marks messages of a stream's current batch, which become dead letters when the batch is done."""

    def __init__(self, schema: StructType, options: Options) -> None:
        if {field.name for field in schema.fields if isinstance(field.dataType, StringType)} != _COLUMNS or len(
            schema.fields
        ) != len(_COLUMNS):
            msg = (
                f"content=deadLetters: the columns are {', '.join(schema.fieldNames()) or 'none'}; select two strings: "
                "the `id` of a message, and the `reason`"
            )
            raise InvalidOptionError(msg)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Rejected:
        """Mark the messages of a partition.

        Raises:
            NotFoundError: a message is not in a batch that the group's query handles.
            ClaimLostError: the batch is done, or another attempt at it has begun.
            PayloadError: an id or a reason is null.
            AccessDeniedError, ConnectionLostError.
        """
        messages = 0
        if (batches := with_rows(iterator)) is None:  # no session is needed
            return Rejected(messages)
        with linked(self._options) as link:
            rejections = link.call(_opened, link)
            for rows in batches:
                reasons = {_text(row, "id"): _text(row, "reason")[:MOST_REASON] for row in rows.to_pylist()}
                link.call(rejections.reject, reasons)
                messages += len(reasons)
        return Rejected(messages)


def _text(row: dict[str, object], name: str) -> str:
    value = row[name]
    if not isinstance(value, str):
        msg = f"column {name!r} is null in a row: each dead letter needs the id of its message, and a reason"
        raise PayloadError(msg)
    return value


async def _opened(link: Link) -> Rejections:
    rejections = Rejections(link.handle, link.options.group)
    await rejections.open()
    return rejections
