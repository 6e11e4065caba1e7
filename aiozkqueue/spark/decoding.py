"""Conversion of JSON values to values of Spark's types and back. Pure.

Types that JSON does not have are stored as text: dates and times in ISO 8601, decimals in digits, bytes in base64. A
decoded value equals the value that Spark's ``from_json`` returns. An ambiguous text does not decode. Numbers with a
decimal point are read as `Decimal`, so that they keep all digits until the type of the column is known.
"""

from __future__ import annotations

import base64
import math
import re
from contextlib import suppress
from datetime import UTC, date, datetime, tzinfo
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from struct import Struct
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
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from aiozkqueue.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_BITS: Final[dict[type[DataType], int]] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}


_DATE: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_MINUTE: Final = "([01][0-9]|2[0-3]):[0-5][0-9]"
_SECOND: Final = f"{_MINUTE}:[0-5][0-9]([.][0-9]+)?"
#: Java has offsets of up to 18 hours. Python has more, and reads ``+05:60`` as six hours.
_OFFSET: Final = "(Z|[+-](0[0-9]|1[0-7])(:?[0-5][0-9])?|[+-]18(:?00)?)"
_LOCAL: Final = re.compile(f"{_DATE}([T ]({_MINUTE}|{_SECOND}))?")
_MOMENT: Final = re.compile(f"{_DATE}([T ]({_MINUTE}|{_SECOND}{_OFFSET}?))?")
_DIGITS: Final = re.compile(r"[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]+)?")
#: More digits than Spark's largest decimal has, so that no digit is lost before the rounding.
_EXACT: Final = Context(prec=80, rounding=ROUND_HALF_UP)
_FLOAT: Final = Struct("f")
#: The smallest `float` of 32 bits that has all its digits.
_NORMAL: Final = 1.17549435e-38
#: A `float` of 32 bits keeps each decimal of up to 6 digits, and 9 digits identify each `float`.
_ALWAYS_KEPT: Final = 6
_ALWAYS_ENOUGH: Final = 9
#: Texts that Spark reads as numbers.
_NUMBERS: Final = {
    "NaN": float("nan"),
    **dict.fromkeys(("Infinity", "INF", "+INF"), float("inf")),
    **dict.fromkeys(("-Infinity", "-INF"), float("-inf")),
}


def decoder_of(kind: DataType, column: str, zone: tzinfo = UTC) -> Callable[[object], object]:
    """Return a function that converts a JSON value, or null, to this type, or raises ValueError.

    ``zone`` applies to times without a time zone.

    Raises:
        InvalidOptionError: JSON cannot represent the type.
    """
    decode = _decoder(kind, column, zone)
    return lambda value: None if value is None else decode(value)


def _decoder(  # noqa: C901, PLR0911 - one line per type
    kind: DataType, column: str, zone: tzinfo
) -> Callable[[object], object]:
    if isinstance(kind, StringType):
        return _text
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
        return _date
    if isinstance(kind, TimestampType):
        return lambda value: _timestamp(value, zone)
    if isinstance(kind, TimestampNTZType):
        return lambda value: datetime.fromisoformat(_like(_LOCAL, value, "date and time without a zone"))
    if isinstance(kind, BinaryType):
        return lambda value: base64.b64decode(_of(str, value), validate=True)
    if isinstance(kind, ArrayType):
        element = decoder_of(kind.elementType, column, zone)
        return lambda value: [element(item) for item in _of(list, value)]
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        member = decoder_of(kind.valueType, column, zone)
        return lambda value: [(_text(name), member(item)) for name, item in _of(dict, value).items()]
    if isinstance(kind, StructType):
        members = {field.name: decoder_of(field.dataType, column, zone) for field in kind.fields}
        return lambda value: _fields(_of(dict, value), members)
    msg = f"column {column!r}: JSON has no {kind.simpleString()}; use the default columns and decode `body` yourself"
    raise InvalidOptionError(msg)


def encoder_of(kind: DataType, column: str) -> Callable[[Any], object] | None:  # noqa: PLR0911 - one line per type
    """Return a function that converts an Arrow value of this type for JSON; None: no conversion is needed.

    Raises:
        InvalidOptionError: JSON cannot represent the type.
    """
    if isinstance(kind, StringType | BooleanType | DoubleType | NullType) or type(kind) in _BITS:
        return None
    if isinstance(kind, FloatType):
        return _shortest
    if isinstance(kind, DecimalType):
        return lambda value: f"{value:f}"  # `str` uses an exponent for small numbers
    if isinstance(kind, TimestampType):
        return lambda value: value.astimezone(UTC).isoformat()  # before 1900, a local offset may have seconds
    if isinstance(kind, DateType | TimestampNTZType):
        return lambda value: value.isoformat()
    if isinstance(kind, BinaryType):
        return lambda value: base64.b64encode(value).decode()
    if isinstance(kind, ArrayType):
        element = _nullable(encoder_of(kind.elementType, column))
        return lambda value: [element(item) for item in value]
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        member = _nullable(encoder_of(kind.valueType, column))
        return lambda value: {name: member(item) for name, item in value}
    if isinstance(kind, StructType):
        members = {field.name: _nullable(encoder_of(field.dataType, column)) for field in kind.fields}
        return lambda value: {name: encode(value[name]) for name, encode in members.items()}
    msg = (
        f"column {column!r}: {kind.simpleString()} cannot be stored as JSON; convert the column to another type, or "
        "let Spark make the payload: df.select(to_json(struct('*')).alias('body'))"
    )
    raise InvalidOptionError(msg)


def _nullable(encode: Callable[[Any], object] | None) -> Callable[[Any], object]:
    if encode is None:
        return lambda value: value
    return lambda value: None if value is None else encode(value)


def _shortest(value: float) -> float:
    """Return the number with the fewest digits that 32 bits store as this value, as Spark's ``to_json`` does.

    Arrow converts a `float` of 32 bits exactly, and 0.1 becomes 0.10000000149011612.
    """
    for digits in range(2 if abs(value) < _NORMAL else _ALWAYS_KEPT, _ALWAYS_ENOUGH):
        number = float(f"{value:.{digits}g}")
        if _FLOAT.pack(number) == _FLOAT.pack(value):
            return number
    return float(f"{value:.{_ALWAYS_ENOUGH}g}")


def _of(kind: type, value: object) -> Any:  # noqa: ANN401 - of the kind given
    if type(value) is not kind:
        msg = f"{str(value)[:50]!r} is of the type {type(value).__name__}, not {kind.__name__}"
        raise ValueError(msg)
    return value


def _fields(value: Mapping[str, object], decoders: Mapping[str, Callable[[object], object]]) -> dict[str, object]:
    return {name: decode(value.get(name)) for name, decode in decoders.items()}


def _text(value: object) -> str:
    text = cast("str", _of(str, value))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        msg = f"{text[:50]!r} has half of a surrogate pair, which UTF-8 cannot encode"
        raise ValueError(msg) from error
    return text


def _integer(value: object, limit: int) -> int:
    number = cast("int", _of(int, value))
    if not -limit <= number < limit:
        msg = f"{number} is out of range"
        raise ValueError(msg)
    return number


def _float(value: object) -> float:
    if isinstance(value, str) and value in _NUMBERS:
        return _NUMBERS[value]
    number = value if type(value) is int or isinstance(value, Decimal) else cast("float", _of(float, value))
    try:
        return float(number)
    except OverflowError:  # only an integer: a decimal has become infinite already
        return math.inf if number > 0 else -math.inf


def _decimal(value: object, kind: DecimalType) -> Decimal:
    is_number = type(value) is int or isinstance(value, Decimal)
    number = Decimal(cast("int | Decimal", value) if is_number else _like(_DIGITS, value, "decimal"))
    with suppress(InvalidOperation):  # more digits than any decimal has
        rounded = number.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
        if len(rounded.as_tuple().digits) <= kind.precision:
            return rounded
    msg = f"{str(value)[:50]!r} does not fit {kind.simpleString()}"
    raise ValueError(msg)


def _date(value: object) -> date:
    return datetime.fromisoformat(_like(_LOCAL, value, "date")).date()


def _timestamp(value: object, zone: tzinfo) -> datetime:
    moment = datetime.fromisoformat(_like(_MOMENT, value, "timestamp"))
    try:
        return (moment.replace(tzinfo=zone) if moment.tzinfo is None else moment).astimezone(UTC)
    except OverflowError as error:
        msg = f"{str(value)[:50]!r} is out of range"
        raise ValueError(msg) from error


def _like(pattern: re.Pattern[str], value: object, what: str) -> str:
    text = cast("str", _of(str, value))
    if pattern.fullmatch(text) is None:
        msg = f"{text[:50]!r} is not a {what}"
        raise ValueError(msg)
    return text
