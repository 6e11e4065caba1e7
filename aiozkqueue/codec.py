"""Codecs: values to payloads and back."""

from __future__ import annotations

import json
import math
import re
from collections import deque
from pathlib import PurePath
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, ForwardRef, Generic, Protocol, TypeVar, cast

from pydantic_core import PydanticSerializationError, ValidationError

from aiozkqueue.errors import InvalidOptionError, PayloadError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import TypeAdapter

T = TypeVar("T")

_NULL = b"null"
_COLLECTIONS = frozenset({"list", "tuple", "set", "frozenset"})
#: The kinds of pydantic's schemas whose values hold no float and are read as one type, unless a part differs.
_PLAIN = _COLLECTIONS | {
    *("none", "bool", "int", "str", "bytes", "date", "time", "datetime", "timedelta", "uuid", "literal", "enum", "url"),
    *("nullable", "default", "tagged-union", "definitions", "definition-ref", "dict"),
    *("model", "model-fields", "model-field", "dataclass", "dataclass-args", "dataclass-field"),
    *("typed-dict", "typed-dict-field"),
}
#: A union holds no float either, but a member may be read as another one.
_WITHOUT_FLOATS = _PLAIN | {"union"}
_OF_FIXED_TYPES = _PLAIN | {"float"}

# Matches pydantic's text about a mismatched value: what it expected and for which field, without the value.
_EXPECTED = re.compile(r"\((Expected [^\n]*?) - [^\n\[]*\[(?:field_name='([^'\n]*)', )?input_value=")


class Codec(Protocol[T]):
    """Converts a queue's values to bytes and back."""

    def encode(self, value: T, queue: str) -> bytes:
        """Dump a value. Raises: PayloadError."""
        ...

    def decode(self, payload: bytes, queue: str) -> T:
        """Load a value. Raises: PayloadError."""
        ...


class BytesCodec:
    """Leaves payloads as they are."""

    def encode(self, value: object, queue: str) -> bytes:
        """Return the bytes given. Raises: PayloadError."""
        if type(value) is bytes:
            return value
        if not isinstance(value, bytes | bytearray | memoryview):
            kind = type(value).__name__
            msg = (
                f"queue {queue!r} takes bytes, not {kind}; for other values, put to a queue with a type, such as "
                f"session.queue({queue!r}, {kind})"
            )
            raise PayloadError(msg)
        return bytes(cast("bytes | bytearray | memoryview[int]", value))

    def decode(self, payload: bytes, queue: str) -> bytes:  # noqa: ARG002 - the protocol's
        """Return the payload."""
        return payload


def encode_all(codec: Codec[Any], values: Iterable[object], queue: str) -> list[bytes]:
    """Dump values. Raises: PayloadError."""
    listed = list(values)
    if isinstance(codec, BytesCodec) and set(map(type, listed)) <= {bytes}:
        return cast("list[bytes]", listed)  # no call for each of thousands of messages
    return [codec.encode(value, queue) for value in listed]


class AdapterCodec(Generic[T]):
    """Encodes JSON with a pydantic type adapter; rejects values that the JSON would not give back."""

    def __init__(self, adapter: TypeAdapter[T]) -> None:
        self._adapter = adapter
        self._has_no_floats: bool | None = None  # not known yet
        self._has_fixed_types: bool | None = None  # not known yet

    def encode(self, value: T, queue: str) -> bytes:
        """Validate and dump a value. Raises: PayloadError."""
        try:
            self._adapter.validate_python(value, strict=True)
            declared = self._adapter.dump_json(value, by_alias=True, round_trip=True, warnings="error")
            actual = self._adapter.dump_json(value, by_alias=True, round_trip=True, serialize_as_any=True)
        except Exception as error:  # noqa: BLE001 - a validator or a serializer of the program may raise any
            msg = f"not a value for queue {queue!r}: {_summary(error)}"
            raise PayloadError(msg) from None  # pydantic's error shows the value, and tracebacks are logged
        if declared != actual:
            self._refuse_lost_fields(value, queue)
        if _NULL in declared:
            self._refuse_lost_numbers(value, declared, queue)
        self._refuse_another_value(value, declared, queue)
        return declared

    def decode(self, payload: bytes, queue: str) -> T:
        """Load and validate a payload. Raises: PayloadError."""
        try:
            return self._adapter.validate_json(payload)
        except Exception as error:  # noqa: BLE001 - as above
            msg = f"payload on queue {queue!r} does not decode: {_summary(error)}"
            raise PayloadError(msg) from None

    def _refuse_another_value(self, value: T, stored: bytes, queue: str) -> None:
        """Refuse a value whose JSON does not decode, or decodes as a different model or secret."""
        try:
            decoded = self._adapter.validate_json(stored)
        except Exception as error:  # noqa: BLE001 - as above
            msg = f"not a value for queue {queue!r}: its type does not read the JSON that it writes: {_summary(error)}"
            raise PayloadError(msg) from None
        if self._has_fixed_types is None:
            self._has_fixed_types = _consists_of(_OF_FIXED_TYPES, self._adapter.core_schema)
        if self._has_fixed_types:
            return
        try:
            equal = bool(decoded == value)
        except Exception:  # noqa: BLE001 - the comparison is the program's
            equal = False
        if equal:
            return
        from .lost_values import difference_of  # noqa: PLC0415 - it imports pydantic; see codec_of

        if (difference := difference_of(value, decoded)) is not None:
            msg = f"not a value for queue {queue!r}: {difference}"
            raise PayloadError(msg)

    def _refuse_lost_fields(self, value: T, queue: str) -> None:
        declared = self._adapter.dump_python(value, mode="json", by_alias=True, round_trip=True)
        actual = self._adapter.dump_python(value, mode="json", by_alias=True, round_trip=True, serialize_as_any=True)
        lost = _lost_key(declared, actual)
        if lost is not None:
            msg = (
                f"queue {queue!r} would lose the field {lost!r} of {type(value).__name__}: "
                "it is not part of the queue's declared type; declare a union, or the subclass"
            )
            raise PayloadError(msg)

    def _refuse_lost_numbers(self, value: T, declared: bytes, queue: str) -> None:
        """Refuse NaN and infinity if they become null, which decodes as None, or as no value at all."""
        if self._has_no_floats is None:
            self._has_no_floats = _consists_of(_WITHOUT_FLOATS, self._adapter.core_schema)
        if self._has_no_floats:
            return
        plain = self._adapter.dump_python(value, by_alias=True, round_trip=True)
        nones, odd_numbers = _count(plain)
        if odd_numbers and _count(json.loads(declared))[0] > nones:
            msg = (
                f"not a value for queue {queue!r}: JSON has no NaN and no infinity, so a number would become null; "
                "set pydantic's ser_json_inf_nan to 'constants' or 'strings'"
            )
            raise PayloadError(msg)


def _consists_of(kinds: frozenset[str], schema: object) -> bool:
    """Whether a type certainly consists of these kinds of schemas, so that its values need not be searched."""
    left: list[object] = [schema]
    while left:
        inner = left.pop()
        if isinstance(inner, dict):
            part = cast("dict[str, object]", inner)
            kind = part.get("type")
            if kind is not None and kind not in kinds:
                return False
            if (kind in _COLLECTIONS and "items_schema" not in part) or (
                kind == "dict" and "values_schema" not in part
            ):
                return False
            if "allow" in (part.get("extra_behavior"), part.get("extra_fields_behavior")):
                return False
            left += part.values()
        elif isinstance(inner, list | tuple):
            left += cast("Iterable[object]", inner)
    return True


def _count(value: object) -> tuple[int, int]:
    """Return how often nested collections contain None, and how often a number that is not finite."""
    nones = odd_numbers = 0
    left: list[object] = [value]
    while left:
        inner = left.pop()
        if inner is None:
            nones += 1
        elif isinstance(inner, float):
            odd_numbers += not math.isfinite(inner)
        elif isinstance(inner, dict):
            left += cast("dict[object, object]", inner).values()
        elif isinstance(inner, list | tuple | set | frozenset | deque):
            left += cast("Iterable[object]", inner)
    return nones, odd_numbers


def _lost_key(declared: object, actual: object) -> str | None:
    """Return the first mapping key that the declared type drops."""
    if isinstance(declared, dict) and isinstance(actual, dict):
        kept = cast("dict[object, object]", declared)
        for key, inner in cast("dict[object, object]", actual).items():
            if key not in kept:
                return str(key)
            if (lost := _lost_key(kept[key], inner)) is not None:
                return lost
    elif isinstance(declared, list) and isinstance(actual, list):
        for declared_item, actual_item in zip(
            cast("list[object]", declared), cast("list[object]", actual), strict=False
        ):
            if (lost := _lost_key(declared_item, actual_item)) is not None:
                return lost
    return None


def _summary(error: Exception) -> str:
    """Describe an error without repeating the payload, which may be secret."""
    if isinstance(error, ValidationError):
        return "; ".join(
            f"{'.'.join(map(str, detail['loc'])) or 'value'}: {detail['msg']}"
            for detail in error.errors(include_input=False, include_url=False)[:5]
        )
    if not isinstance(error, PydanticSerializationError):  # its text may repeat the payload
        *_, (frame, line) = walk_tb(error.__traceback__)
        code = frame.f_code
        return f"{code.co_qualname} raised {type(error).__name__} ({PurePath(code.co_filename).name}, line {line})"
    expected = [f"{field or 'value'}: {expectation}" for expectation, field in _EXPECTED.findall(str(error))]
    return "; ".join(expected[:5]) or str(error).splitlines()[0][:300]


BYTES = BytesCodec()


def chosen_codec(
    name: str,
    type_: Any,  # noqa: ANN401 - any type form
    adapter: TypeAdapter[Any] | None,
    known: dict[Any, Codec[Any]],
) -> Codec[Any]:
    """Return the codec of a type, of an adapter, or of bytes if neither is given.

    Raises: InvalidOptionError: both are given, or as `codec_of` and `codec_by`.
    """
    if adapter is None:
        return BYTES if type_ is None else codec_of(name, type_, known)
    if type_ is not None:
        msg = f"queue {name!r}: give a type or an adapter, not both"
        raise InvalidOptionError(msg)
    return codec_by(name, adapter)


def codec_of(name: str, type_: Any, known: dict[Any, Codec[Any]]) -> Codec[Any]:  # noqa: ANN401 - any type form
    """Return the codec of a type. Raises: InvalidOptionError."""
    if type_ is bytes:
        return BYTES
    # A fifth of the import time of the package. Commands, and programs whose payloads are bytes, do not need it.
    from pydantic import TypeAdapter  # noqa: PLC0415 - see above

    if isinstance(type_, TypeAdapter):
        msg = f"queue {name!r}: give a TypeAdapter as adapter=, not as the type"
        raise InvalidOptionError(msg)
    if isinstance(type_, str | ForwardRef):
        written = type_ if isinstance(type_, str) else type_.__forward_arg__
        msg = f"queue {name!r}: {written!r} is the name of a type, not a type: give the type itself, without quotes"
        raise InvalidOptionError(msg)
    try:
        codec = known.get(type_)
        if codec is None:
            codec = known[type_] = codec_by(name, TypeAdapter[Any](type_), type_)
    except InvalidOptionError:
        raise
    except Exception as error:  # pydantic raises many kinds of errors here
        # The rest of its text is about pydantic's own settings and hooks; the cause has it.
        reason = str(error).partition("\n")[0].partition(". Set `arbitrary_types_allowed")[0].removesuffix(".")
        msg = (
            f"queue {name!r}: {type_!r} is not a type that pydantic supports: {reason}; use a pydantic model, a "
            "dataclass or a TypedDict, or leave out the type and put bytes"
        )
        raise InvalidOptionError(msg) from error
    return codec


def codec_by(name: str, adapter: TypeAdapter[Any], type_: object = None) -> Codec[Any]:
    """Return the codec of an adapter, of this type (None: not known).

    Raises: InvalidOptionError: it refers to undefined names.
    """
    try:
        len(adapter.core_schema)  # completes an incomplete adapter, or raises
    except Exception as error:  # as above
        what = adapter if type_ is None else type_
        msg = f"queue {name!r}: {what!r} is not fully defined: define the types that it refers to before the queue"
        raise InvalidOptionError(msg) from error
    return AdapterCodec(adapter)
