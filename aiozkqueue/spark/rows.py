"""Rows to messages: a `body` column is the payload, or all columns are a JSON object."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from aiozkqueue.errors import InvalidOptionError, PayloadError

from .decoding import encoder_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

_OPTIONS: Final[dict[str, tuple[type[DataType], ...]]] = {
    "key": (StringType,),
    "group": (StringType,),
    "priority": (IntegerType,),
    "headers": (MapType,),
    "delay": (DoubleType, IntegerType, LongType),
    "at": (TimestampType,),
    "ttl": (DoubleType, IntegerType, LongType),
}


class Row(NamedTuple):
    """A payload and how it is put."""

    body: bytes
    options: dict[str, object]


class RowEncoder:
    """How the rows of one schema become messages.

    With a column ``body`` (binary or string) that is the payload, and the others are put options: ``key``, ``group``,
    ``priority``, ``headers``, ``delay``, ``at``, ``ttl``; null leaves one out. Without, the payload is a JSON object
    of all columns.

    Raises:
        InvalidOptionError: a column is of no use, or of the wrong type.
    """

    def __init__(self, schema: StructType) -> None:
        kinds = {field.name: field.dataType for field in schema.fields}
        self._body = "body" in kinds
        self._encoders: dict[str, Callable[[object], object]] = {}
        if not self._body:
            for name, kind in kinds.items():
                if (encode := encoder_of(kind)) is not None:
                    self._encoders[name] = encode
            return
        if not isinstance(kinds.pop("body"), BinaryType | StringType):
            msg = "column 'body', the payload, is binary or string"
            raise InvalidOptionError(msg)
        for name, kind in kinds.items():
            if name not in _OPTIONS:
                msg = f"column {name!r}: beside `body` there may be {', '.join(_OPTIONS)}; drop others"
                raise InvalidOptionError(msg)
            texts = not isinstance(kind, MapType) or (
                isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
            )
            if not isinstance(kind, _OPTIONS[name]) or not texts:
                msg = f"column {name!r}: it cannot be {kind.simpleString()}"
                raise InvalidOptionError(msg)

    def rows(self, batch: pa.RecordBatch) -> list[Row]:
        """Encode a batch. Raises: PayloadError: a payload is null, or no JSON (a NaN)."""
        if self._body and batch.num_columns == 1:
            return [Row(_bytes(value), {}) for value in batch.column(0).to_pylist()]
        return [self._row(values) for values in batch.to_pylist()]

    def _row(self, values: dict[str, object]) -> Row:
        if self._body:
            body = _bytes(values.pop("body"))
            options = {name: value for name, value in values.items() if value is not None}
            if isinstance(headers := options.get("headers"), list):
                options["headers"] = dict(headers)
            return Row(body, options)
        for name, encode in self._encoders.items():
            if (value := values[name]) is not None:
                values[name] = encode(value)
        try:
            return Row(json.dumps(values, allow_nan=False, ensure_ascii=False).encode(), {})
        except ValueError as error:
            msg = f"a row is no JSON: {error}"
            raise PayloadError(msg) from error


def _bytes(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    msg = "column 'body' is null in a row: a message needs a payload, which may be empty"
    raise PayloadError(msg)
