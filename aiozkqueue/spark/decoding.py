"""JSON values to the values of Spark's types and back. Pure.

What JSON has no type for is text: dates and times in ISO 8601, decimals in digits, bytes in base64.
"""

from __future__ import annotations

import base64
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from aiozkqueue.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Callable

_BITS: Final[dict[type[DataType], int]] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}


def decoder_of(kind: DataType, column: str) -> Callable[[object], object]:
    """Return what turns a JSON value, or null, into one of this type; it raises ValueError where that is not possible.

    Raises:
        InvalidOptionError: there is no such value in JSON.
    """
    decode = _decoder(kind, column)
    return lambda value: None if value is None else decode(value)


def _decoder(kind: DataType, column: str) -> Callable[[object], object]:  # noqa: C901, PLR0911 - one line a type
    if isinstance(kind, StringType):
        return lambda value: _of(str, value)
    if isinstance(kind, BooleanType):
        return lambda value: _of(bool, value)
    if type(kind) in _BITS:
        limit = 1 << (_BITS[type(kind)] - 1)
        return lambda value: _integer(value, limit)
    if isinstance(kind, DoubleType | FloatType):
        return _float
    if isinstance(kind, DecimalType):
        return lambda value: _decimal(value, kind)
    if isinstance(kind, DateType):
        return lambda value: date.fromisoformat(_of(str, value))
    if isinstance(kind, TimestampType):
        return _timestamp
    if isinstance(kind, TimestampNTZType):
        return lambda value: datetime.fromisoformat(_of(str, value)).replace(tzinfo=None)
    if isinstance(kind, BinaryType):
        return lambda value: base64.b64decode(_of(str, value), validate=True)
    if isinstance(kind, ArrayType):
        element = decoder_of(kind.elementType, column)
        return lambda value: [element(one) for one in _of(list, value)]
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        member = decoder_of(kind.valueType, column)
        return lambda value: [(name, member(one)) for name, one in _of(dict, value).items()]
    if isinstance(kind, StructType):
        members = {field.name: decoder_of(field.dataType, column) for field in kind.fields}
        return lambda value: {name: decode(_of(dict, value).get(name)) for name, decode in members.items()}
    msg = f"column {column!r}: JSON has no {kind.simpleString()}; take the default columns and decode `body` yourself"
    raise InvalidOptionError(msg)


def encoder_of(kind: DataType) -> Callable[[Any], object] | None:  # noqa: PLR0911 - one line a type
    """Return what turns a value of this type, as Arrow gives it, into one for JSON; None: it is one.

    Raises:
        InvalidOptionError: there is no such value in JSON.
    """
    if isinstance(kind, StringType | BooleanType | DoubleType | FloatType) or type(kind) in _BITS:
        return None
    if isinstance(kind, DecimalType):
        return str
    if isinstance(kind, DateType | TimestampType | TimestampNTZType):
        return lambda value: value.isoformat()
    if isinstance(kind, BinaryType):
        return lambda value: base64.b64encode(value).decode()
    if isinstance(kind, ArrayType):
        element = _nullable(encoder_of(kind.elementType))
        return lambda value: [element(one) for one in value]
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        member = _nullable(encoder_of(kind.valueType))
        return lambda value: {name: member(one) for name, one in value}
    if isinstance(kind, StructType):
        members = {field.name: _nullable(encoder_of(field.dataType)) for field in kind.fields}
        return lambda value: {name: encode(value[name]) for name, encode in members.items()}
    msg = f"JSON has no {kind.simpleString()}: make a binary column `body` of the row yourself"
    raise InvalidOptionError(msg)


def _nullable(encode: Callable[[Any], object] | None) -> Callable[[Any], object]:
    if encode is None:
        return lambda value: value
    return lambda value: None if value is None else encode(value)


def _of(kind: type, value: object) -> Any:  # noqa: ANN401 - of the kind given
    if type(value) is not kind:
        msg = f"{str(value)[:50]!r} is no {kind.__name__}"
        raise ValueError(msg)
    return value


def _integer(value: object, limit: int) -> int:
    number = cast("int", _of(int, value))
    if not -limit <= number < limit:
        msg = f"{number} is out of range"
        raise ValueError(msg)
    return number


def _float(value: object) -> float:
    return float(value) if type(value) is int else cast("float", _of(float, value))


def _decimal(value: object, kind: DecimalType) -> Decimal:
    if type(value) not in (str, int, float):
        return cast("Decimal", _of(str, value))
    try:
        number = Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale))
    except InvalidOperation as error:
        msg = f"{str(value)[:50]!r} is no decimal"
        raise ValueError(msg) from error
    if not number.is_finite() or len(number.as_tuple().digits) > kind.precision:
        msg = f"{str(value)[:50]!r} does not fit {kind.simpleString()}"
        raise ValueError(msg)
    return number


def _timestamp(value: object) -> datetime:
    moment = datetime.fromisoformat(_of(str, value))
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
