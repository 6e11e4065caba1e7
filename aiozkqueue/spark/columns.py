"""The columns of a read, and the conversion of rows to Arrow batches of exactly that schema."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from aiozkqueue.errors import InvalidOptionError, PayloadError

from .bundle_arrays import record_batch
from .decoding import decoder_of
from .options import Content, Mode, zone_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .bundle_arrays import ColumnarPart
    from .options import Options

    #: Makes a value of a row from the properties of the message, the fields of its payload, and its corrupt payload.
    Maker: TypeAlias = Callable[[Mapping[str, object], Mapping[str, object], bytes | None], object]

_TEXTS: Final = MapType(StringType(), StringType())
_COLUMNS: Final[dict[Content, dict[str, DataType]]] = {
    Content.ITEMS: {
        "id": StringType(),
        "body": BinaryType(),
        "state": StringType(),
        "attempt": IntegerType(),
        "owner": StringType(),
        "enqueued_at": TimestampType(),
        "headers": _TEXTS,
        "key": StringType(),
        "group": StringType(),
        "priority": IntegerType(),
        "due": TimestampType(),
        "tags": _TEXTS,
    },
    Content.DEAD_LETTERS: {
        "id": StringType(),
        "body": BinaryType(),
        "reason": StringType(),
        "attempt": IntegerType(),
        "dead_at": TimestampType(),
        "enqueued_at": TimestampType(),
        "headers": _TEXTS,
        "key": StringType(),
        "group": StringType(),
        "priority": IntegerType(),
        "tags": _TEXTS,
    },
    Content.HISTORY: {
        "id": StringType(),
        "outcome": StringType(),
        "put_at": TimestampType(),
        "claimed_at": TimestampType(),
        "ended_at": TimestampType(),
        "attempt": IntegerType(),
        "client": StringType(),
        "host": StringType(),
        "pid": IntegerType(),
        "key": StringType(),
        "group": StringType(),
        "reason": StringType(),
        "headers": _TEXTS,
        "body": BinaryType(),
    },
}
#: Properties that are not stored in a message's own znode.
_OF_LOCKS: Final = frozenset({"state", "attempt", "owner", "due"})
#: Properties that every message has.
_NEVER_NULL: Final = frozenset({"id"})
#: Maximum length of the reason of a dead letter, characters.
MOST_REASON: Final = 1000


class DecodedRows(NamedTuple):
    """Rows, and the reasons why other messages have no row, by message id."""

    rows: list[list[object]]
    undecodable: dict[str, str]
    size: int
    """The size of the payloads that were decoded, bytes."""


def default_schema(content: Content) -> StructType:
    """Return the columns of a read without a schema."""
    return StructType([StructField(name, kind, nullable=True) for name, kind in _COLUMNS[content].items()])


class RowLayout:
    """Converts messages to the requested columns.

    Without a schema, each default column has its own name. In a user's schema, a column named ``_id`` is the ``id``,
    and likewise for the other properties. Every other column is a field of the payload, which is a JSON object.

    Raises:
        InvalidOptionError: a column is not available.
    """

    def __init__(self, schema: StructType, options: Options) -> None:
        _require_distinct(schema.fieldNames())
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._mode = options.mode
        self._what = f"queue {options.queue!r}"
        known = _COLUMNS[options.content]
        plain = {field.name for field in schema.fields} <= known.keys() and "body" in schema.fieldNames()
        plain = plain or schema == default_schema(options.content)
        if not plain:
            _require_case(schema.fieldNames(), known, options.corrupt)
            _require_field(schema)
        #: The columns that contain a property of the message instead of its payload, with that property.
        self.of_message: dict[str, str] = {}
        self._makers: list[Maker] = []
        self._fields: dict[str, Callable[[object], object]] = {}
        for field in schema.fields:
            name = field.name if plain else field.name.removeprefix("_")
            if (plain or field.name.startswith("_")) and name in known:
                _require_property(field, name, known[name])
                self._makers.append(_from_message(name))
                self.of_message[field.name] = name
            elif field.name == options.corrupt:
                _require_corrupt(field)
                self._makers.append(lambda _values, _fields, corrupt: _text(corrupt))
            else:
                if StructType([field]) != StructType([field]).toNullable():
                    raise _null_possible(field.name)
                self._fields[field.name] = decoder_of(field.dataType, field.name, zone_of(options.time_zone))
                self._makers.append(_from_payload(field.name))
        #: Whether payloads are decoded: also if only the column of corrupt records needs it.
        self._decodes: bool = len(self.of_message) < len(schema.fields)
        #: Whether a column needs a message's lock or the record of its attempts.
        self.reads_locks: bool = not _OF_LOCKS.isdisjoint(self.of_message.values())
        #: Whether all columns are properties of the message, so that no payload is decoded.
        self.is_columnar: bool = not self._decodes

    def decode(self, messages: Sequence[Mapping[str, object]]) -> DecodedRows:
        """Make rows of these messages. Raises: PayloadError, in the mode FAILFAST."""
        rows: list[list[object]] = []
        undecodable: dict[str, str] = {}
        for values in messages:
            fields, corrupt = {}, None
            try:
                fields = self._decode(values)
            except ValueError as error:
                if self._mode is Mode.FAILFAST:
                    msg = f"{self._what}: message {values.get('id')} does not decode: {error}"
                    raise PayloadError(msg) from error
                if self._mode is Mode.DEADLETTER:
                    undecodable[str(values["id"])] = str(error)[:MOST_REASON]
                    continue
                corrupt = body_of(values)
            rows.append([make(values, fields, corrupt) for make in self._makers])
        return DecodedRows(rows, undecodable, sum(len(body_of(values) or b"") for values in messages))

    def columns(self, parts: Sequence[ColumnarPart]) -> pa.RecordBatch:
        """Make a batch of messages of bundles, if the layout `is_columnar`."""
        return record_batch(self._schema, list(self.of_message.values()), parts)

    def batch(self, rows: Sequence[Sequence[object]]) -> pa.RecordBatch:
        """Make a batch of rows."""
        columns = zip(*rows, strict=True) if rows else [()] * len(self._makers)
        arrays = [pa.array(column, type=field.type) for column, field in zip(columns, self._schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _decode(self, values: Mapping[str, object]) -> dict[str, object]:
        return decode_object(body_of(values) or b"", self._fields) if self._decodes else {}


def _require_distinct(names: Sequence[str]) -> None:
    """Refuse two columns of one name. Raises: InvalidOptionError."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        msg = f"column {twice[0]!r} is in the schema twice"
        raise InvalidOptionError(msg)


def _require_case(names: Sequence[str], known: Mapping[str, DataType], corrupt: str) -> None:
    """Refuse a column whose name differs from the name of a known column only in case.

    Spark does not distinguish the two names, but the column would be a null field of the payload.

    Raises: InvalidOptionError.
    """
    lower = {name.lower() for name in names}
    ours = {*known} if lower <= known.keys() and "body" in lower else {f"_{name}" for name in known}
    exact = {name.lower(): name for name in (*ours, corrupt)}
    for name in names:
        meant = exact.get(name.lower(), name)
        if meant != name:
            msg = f"column {name!r}: the column for each message is `{meant}`, in exactly this case; rename it"
            raise InvalidOptionError(msg)


def _require_property(field: StructField, name: str, kind: DataType) -> None:
    """Refuse a column of a property of the message that has another type. Raises: InvalidOptionError."""
    expected, given = kind.simpleString(), field.dataType.simpleString()
    if given != expected:  # whether a map may contain nulls does not matter
        msg = f"column {field.name!r} must be {expected}, not {given}"
        raise InvalidOptionError(msg)
    if name not in _NEVER_NULL and not field.nullable:
        raise _null_possible(field.name)


def _require_corrupt(field: StructField) -> None:
    """Refuse a column of corrupt records that cannot hold them. Raises: InvalidOptionError."""
    if not isinstance(field.dataType, StringType):
        msg = f"the column of corrupt records, {field.name!r}, must be a string"
        raise InvalidOptionError(msg)
    if not field.nullable:
        raise _null_possible(field.name)


def _null_possible(column: str) -> InvalidOptionError:
    """Return the error for a column that is declared as never null. Spark would read a null in it as another value."""
    return InvalidOptionError(
        f"column {column!r} is NOT NULL, or has a field or element that is, but a message or its payload may lack the "
        "value: pass schema.toNullable(), or leave NOT NULL out"
    )


def _require_field(schema: StructType) -> None:
    """Refuse a column `body` that has the type of the payload, but would be a null field of it.

    Raises: InvalidOptionError.
    """
    if any(field.name == "body" and isinstance(field.dataType, BinaryType) for field in schema.fields):
        msg = (
            "column 'body': with fields of the payload, the payload itself is `_body`, and likewise `_id`, `_key` …; "
            "for a field named `body` in base64, use the default columns and from_json"
        )
        raise InvalidOptionError(msg)


def body_of(values: Mapping[str, object]) -> bytes | None:
    """Return the payload of a message or a record."""
    body = values.get("body")
    assert body is None or isinstance(body, bytes)  # noqa: S101 - `reading` ensures this
    return body


def _from_message(name: str) -> Maker:
    return lambda values, _fields, _corrupt: values.get(name)


def _from_payload(name: str) -> Maker:
    return lambda _values, fields, _corrupt: fields.get(name)


def decode_object(body: bytes, fields: Mapping[str, Callable[[object], object]]) -> dict[str, object]:
    """Read the fields of a JSON object; a missing field is null. Raises: ValueError."""
    try:
        text = body.decode("utf-8", "surrogatepass")  # from bytes, `loads` would also read UTF-16
        value: object = json.loads(text, parse_float=Decimal)
    except (InvalidOperation, RecursionError) as error:
        msg = "the payload has a number that is out of range, or is nested too deeply"
        raise ValueError(msg) from error
    if not isinstance(value, dict):
        msg = f"the payload is a JSON {type(value).__name__}, not an object"
        raise ValueError(msg)  # noqa: TRY004 - the same error for every payload that does not decode
    return {name: decode(value.get(name)) for name, decode in fields.items()}


def _text(body: bytes | None) -> str | None:
    return None if body is None else body.decode("utf-8", "backslashreplace")
