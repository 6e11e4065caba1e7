"""Stored JSON objects: read strictly and within bounds, written compactly.

Every record except the payload is one JSON object. For any bytes, reading returns an object or raises `MalformedError`.
The length is bounded before parsing, and the parser refuses nesting beyond 200 levels, lone surrogates and NaN.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, cast

from pydantic_core import from_json

from .errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import JsonValue
    from pydantic_core import ValidationError

OBJECT_LIMIT: Final = 64 * 1024
"""Maximum bytes of JSON to read. Longer data is refused unread."""

TEXT_LIMIT: Final = 4 * 1024
"""Maximum bytes of UTF-8 kept of an error text or a reason."""

LAST_MOMENT: Final = 253_402_300_799_999
"""The last millisecond of the year 9999 in UTC, the maximum of a datetime."""

LARGEST_NUMBER: Final = 2**31 - 1
"""The maximum count, priority or process number, equal to that of a Java int."""

_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def write_object(fields: Mapping[str, JsonValue]) -> bytes:
    """Return compact JSON in UTF-8.

    Raises:
        ValueError: a text has lone surrogates, or a number is not finite.
    """
    return _to_json(fields).encode()


def read_object(data: bytes, what: str) -> dict[str, JsonValue]:
    """Return the JSON object in ``data``; errors name it ``what``.

    Raises:
        MalformedError: the data is not one JSON object in UTF-8 of at most 64 KiB.
    """
    if len(data) > OBJECT_LIMIT:
        raise MalformedError(f"{what} has {len(data)} bytes, more than {OBJECT_LIMIT}")
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise MalformedError(f"{what} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise MalformedError(f"{what} is not a JSON object")
    return cast("dict[str, JsonValue]", value)


def readable_fields(data: bytes, what: str) -> dict[str, JsonValue]:
    """Decode a JSON object that only informs people; data that does not decode has no fields."""
    try:
        return read_object(data, what)
    except MalformedError:
        return {}


def unusable(what: str, error: ValidationError) -> MalformedError:
    """Return the error for an object that its schema refuses; it names the first fault, and shows no values."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return MalformedError(f"{what} cannot be used, {where}: {first['msg']}")


def no_fields() -> dict[str, JsonValue]:
    """Return an empty mapping, the unknown fields of a record that has none."""
    return {}


def unknown_fields(fields: dict[str, JsonValue], what: str) -> dict[str, JsonValue]:
    """Return the fields that were not popped, after checking that they can be written again.

    Raises:
        MalformedError: they hold a number that JSON readers parse as infinite.
    """
    if fields:
        try:
            write_object(fields)
        except ValueError as error:
            raise MalformedError(f"{what} has fields that cannot be kept: {error}") from error
    return fields


def pop_text(fields: dict[str, JsonValue], field: str, what: str) -> str | None:
    """Remove an optional text from ``fields`` and return it.

    Raises:
        MalformedError: the field is not a string.
    """
    value = fields.pop(field, None)
    if value is None or isinstance(value, str):
        return value
    raise MalformedError(f"{what}: {field!r} is not a string")


def pop_texts(fields: dict[str, JsonValue], field: str, what: str) -> dict[str, str]:
    """Remove an optional object of strings from ``fields`` and return it; empty if it is not there.

    Raises:
        MalformedError: the field is not an object of strings.
    """
    value = fields.pop(field, None)
    if value is None:
        return {}
    if isinstance(value, dict):
        texts = {name: text for name, text in value.items() if isinstance(text, str)}
        if len(texts) == len(value):
            return texts
    raise MalformedError(f"{what}: {field!r} is not an object of strings")


def pop_number(
    fields: dict[str, JsonValue], field: str, what: str, least: int = 0, most: int = LAST_MOMENT
) -> int | None:
    """Remove an optional integer between ``least`` and ``most`` from ``fields`` and return it.

    Raises:
        MalformedError: the field is not such an integer.
    """
    value = fields.pop(field, None)
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    raise MalformedError(f"{what}: {field!r} is not an integer from {least} to {most}")


def check_moment(ms: int, what: str = "time") -> int:
    """Return a time in milliseconds since 1970.

    Raises:
        MalformedError: it is not between 1970 and the end of the year 9999.
    """
    if not 0 <= ms <= LAST_MOMENT:
        raise MalformedError(f"{what} {ms} is not a moment between 1970 and 9999 in milliseconds")
    return ms


def is_text(value: object) -> bool:
    """Whether a value is a text, for values whose callers may not be type-checked."""
    return isinstance(value, str)


def storable_text(text: str) -> str:
    """Return ``text`` cut to 4 KiB of UTF-8 at a character boundary, with lone surrogates replaced, ready to store."""
    data = text[:TEXT_LIMIT].encode("utf-8", "replace")
    return data[:TEXT_LIMIT].decode("utf-8", "ignore")
