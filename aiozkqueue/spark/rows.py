"""Conversion of rows to messages: the column `body` is the payload, or all columns form a JSON object."""

from __future__ import annotations

import json
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import pyarrow as pa
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
from aiozkqueue.layout import key_hash

from .decoding import encoder_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_OPTIONS: Final[dict[str, tuple[type[DataType], ...]]] = {
    "key": (StringType,),
    "group": (StringType,),
    "priority": (IntegerType,),
    "headers": (MapType,),
    "tags": (MapType,),
    "delay": (DoubleType, IntegerType, LongType),
    "at": (TimestampType,),
    "ttl": (DoubleType, IntegerType, LongType),
}
#: The types of the options that are maps.
_MAPS: Final = {"headers": "map<string,string>", "tags": "map<string,string> or map<string,bigint>"}


#: Letters of a mark: 80 bits. Of two million batches with a billion rows each, one has two rows with the same mark.
_MARK: Final = 16


class Row(NamedTuple):
    """A payload and its put options."""

    body: bytes
    options: dict[str, object]
    mark: str = ""
    """The mark that identifies the row, a field of its item's name; empty: the row is identified by its position."""


#: Equivalent to a call of the class, but implemented in C.
_new_row: Final[Callable[[tuple[bytes, dict[str, object], str]], Row]] = partial(
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType]
    Row,
)


class RowEncoder:
    """Converts the rows of one schema to messages.

    A column ``body`` (binary or string) is the payload, and the other columns are then put options: ``key``, ``group``,
    ``priority``, ``headers``, ``tags``, ``delay``, ``at``, ``ttl``. A null omits the option. Without ``body``, the
    payload is a JSON object of all columns.

    Raises:
        InvalidOptionError: there are no columns, or a column is not a put option or has the wrong type.
    """

    def __init__(self, schema: StructType, id_column: str | None = None) -> None:
        """``id_column`` names the column that identifies rows. With a ``body``, this column is not stored."""
        kinds = {field.name: field.dataType for field in schema.fields}
        _require_columns(kinds)
        if id_column is not None and not isinstance(kinds.get(id_column), StringType | IntegerType | LongType):
            msg = f"idColumn={id_column!r}: it must be a column of type string, int or bigint, of {', '.join(kinds)}"
            raise InvalidOptionError(msg)
        self._id = id_column
        self._body = "body" in kinds
        self._encoders: dict[str, Callable[[object], object]] = {}
        if self._body:
            _require_put_options(kinds, id_column)
            return
        for name, kind in kinds.items():
            if (encode := encoder_of(kind, name)) is not None:
                self._encoders[name] = encode

    def rows(self, batch: pa.RecordBatch) -> list[Row]:
        """Encode a batch.

        Raises:
            PayloadError: a payload or an id is null, a number is NaN or infinite, a year is not from 1 to 9999, or a
                text is not UTF-8.
        """
        try:
            if self._body and batch.num_columns == 1 and self._id is None:
                return list(map(_new_row, zip(map(_bytes, batch.column(0).to_pylist()), repeat({}), repeat(""))))
            rows = _in_utc(batch).to_pylist()
        except OverflowError as error:
            msg = "a date or a time of a row is not in the years 1 to 9999: convert it to a string yourself"
            raise PayloadError(msg) from error
        except UnicodeDecodeError as error:
            msg = f"a string in a row is not UTF-8: use a binary column, or make_valid_utf8: {error}"
            raise PayloadError(msg) from error
        return [self._row(values) for values in rows]

    def _row(self, values: dict[str, object]) -> Row:
        mark = "" if self._id is None else _mark(self._id, values[self._id])
        if not self._body:
            return Row(self._json(values), {}, mark)
        body = _bytes(values.pop("body"))
        if self._id is not None and self._id not in _OPTIONS:
            values.pop(self._id, None)  # may be the payload itself
        options = {name: value for name, value in values.items() if value is not None}
        for name in _MAPS.keys() & options.keys():
            options[name] = dict(cast("list[tuple[str, object]]", options[name]))
        return Row(body, options, mark)

    def _json(self, values: dict[str, object]) -> bytes:
        for name, encode in self._encoders.items():
            if (value := values[name]) is not None:
                values[name] = encode(value)
        try:
            return json.dumps(values, allow_nan=False, ensure_ascii=False).encode()
        except ValueError as error:
            msg = f"a row cannot be encoded as JSON: {error}"
            raise PayloadError(msg) from error


def _in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same moments in UTC. They arrive in the session's time zone, whose name only Java may know."""
    schema = pa.schema([field.with_type(_type_in_utc(field.type)) for field in batch.schema])
    return batch if schema == batch.schema else batch.cast(schema)


def _type_in_utc(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_type_in_utc(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(_type_in_utc(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_type_in_utc(kind.value_type)))
    return kind


def _require_columns(names: Collection[str]) -> None:
    """Refuse rows without columns, and a column such as `Body`: Spark treats it as `body`, but rows would be JSON."""
    if not names:
        msg = "the rows have no column, so they cannot be put: select at least one"
        raise InvalidOptionError(msg)
    for name in names:
        if name != "body" and name.lower() == "body":
            msg = f"column {name!r}: the payload is a column `body` in lower case; rename it, or put JSON into `body`"
            raise InvalidOptionError(msg)


def _require_put_options(kinds: Mapping[str, DataType], id_column: str | None) -> None:
    """Refuse a `body` that is not a payload, and other columns that are not put options. Raises: InvalidOptionError."""
    if not isinstance(kinds["body"], BinaryType | StringType):
        msg = "column 'body' is the payload, and must be binary or string"
        raise InvalidOptionError(msg)
    for name, kind in kinds.items():
        if name == "body" or (name == id_column and name not in _OPTIONS):
            continue
        if name not in _OPTIONS:
            msg = f"column {name!r}: with `body`, the other columns may be {', '.join(_OPTIONS)}; drop this one"
            raise InvalidOptionError(msg)
        if not isinstance(kind, _OPTIONS[name]) or not _holds_values_of(name, kind):
            allowed = " or ".join(_MAPS[name] if type_ is MapType else type_.typeName() for type_ in _OPTIONS[name])
            msg = f"column {name!r}: it cannot be {kind.simpleString()}; make it {allowed}"
            raise InvalidOptionError(msg)


def _holds_values_of(name: str, kind: DataType) -> bool:
    """Whether a column that is a map has keys and values of the right types."""
    if not isinstance(kind, MapType):
        return True
    values = (StringType, IntegerType, LongType) if name == "tags" else StringType
    return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, values)


def _bytes(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    msg = "column 'body' is null in a row: a message needs a payload, which may be empty"
    raise PayloadError(msg)


def _mark(column: str, value: object) -> str:
    if value is None:
        msg = f"idColumn: {column!r} is null in a row, so the row cannot be identified"
        raise PayloadError(msg)
    return "r" + key_hash(f"{type(value).__name__} {value}")[:_MARK]
