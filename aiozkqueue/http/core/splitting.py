"""Splits JSON text into its values while it arrives, so that no single step takes long. Pure.

`json.loads` cannot be interrupted: 32 MiB of ``[],`` block the event loop for seconds, even in a thread, because the
parser keeps the interpreter's lock. Here a body is scanned for strings, brackets and separators in small pieces, and
each message is parsed separately. Nesting and cost are checked before anything is parsed.
"""

from __future__ import annotations

import json
import re
import sys
from enum import Enum
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import JsonValue

#: Maximum nesting of arrays and objects, far below the limits of this and other JSON readers.
MOST_NESTED: Final = 400
#: Maximum length of one value of a batch, or of a whole message, as it is sent, characters.
VALUE_LIMIT: Final = 1024 * 1024
#: Text up to this length is always parsed. No stored message is longer.
FREE_LENGTH: Final = 32 * 1024
#: Maximum number of brackets and separators in a longer text, which determine the cost of parsing.
MOST_MARKS: Final = 16_384
#: The number of characters scanned in one step.
STEP: Final = 16 * 1024

_TOKEN: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{},:]', re.DOTALL)
_REST_OF_STRING: Final = re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL)
_BLANKS: Final = " \t\n\r"
_SHOWN: Final = 100


class Shape(Enum):
    """The required structure of a body."""

    VALUE = "any JSON"
    ARRAY = "an array"
    ARRAYS = "an object of arrays"


class _Next(Enum):
    """The token that must follow outside of a value."""

    BODY = "the array or object itself"
    NAME_OR_END = "the first name of an object, or its end"
    NAME = "a name"
    ARRAY = "the array of a name"
    COMMA_OR_END = "a comma, or the end of the object"
    NOTHING = "nothing but blanks"


class NotJsonError(ValueError):
    """The text is not JSON, has the wrong structure, or would take too long to parse."""


class ValueTooLargeError(ValueError):
    """A value has more than `VALUE_LIMIT` characters."""


class Splitter:
    """Takes a text in pieces and returns its values: the messages of a batch one by one.

    Each value comes with the name of its array, which is empty except for `Shape.ARRAYS`. There, each name also comes
    once with None before its values.
    """

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._base = {Shape.VALUE: 0, Shape.ARRAY: 1, Shape.ARRAYS: 2}[shape]
        self._next = _Next.BODY
        self._depth = 0
        self._in_string = False
        self._held: list[str] = []  # the text of the current value
        self._length = 0
        self._escape = ""  # a backslash at the end of a piece belongs to the next piece
        self._name = ""
        self._first = True  # in the current array

    def feed(self, piece: str) -> Iterator[tuple[str, str | None]]:
        """Take a piece; yield the texts of complete values. Raises: NotJsonError, ValueTooLargeError."""
        text, self._escape = self._escape + piece, ""
        start = position = 0
        if self._in_string:
            position = self._end_of_string(text, 0)
        if not self._in_string:
            for token in _TOKEN.finditer(text, position):
                at = token.start()
                mark = text[at]
                if mark == '"':
                    self._end_of_string(text, at + 1)
                elif not self._is_within(mark):
                    yield from self._between(mark, self._taken(text[start:at]))
                    start = at + 1
        self._hold(text[start : len(text) - len(self._escape)])

    def end(self) -> Iterator[tuple[str, str | None]]:
        """Take the end of the text; yield the remaining values. Raises: as `feed`."""
        if self._in_string or self._depth or self._escape:
            raise NotJsonError("it ends too early")
        rest = self._taken("")
        if not self._base:
            yield "", rest
        else:
            self._expect(rest, _Next.NOTHING)

    # -- tokens

    def _end_of_string(self, text: str, position: int) -> int:
        """Skip to the end of a string, or of its available part."""
        rest = _REST_OF_STRING.match(text, position)
        end = position if rest is None else rest.end()
        self._in_string = end >= len(text) or text[end] != '"'
        if self._in_string:
            self._escape = text[end:]  # a backslash, or empty
        return end + 1

    def _is_within(self, mark: str) -> bool:
        """Whether a bracket or separator belongs to a value whose text continues."""
        if mark in "[{":
            self._depth += 1
            if self._depth > MOST_NESTED:
                raise NotJsonError(f"it is nested more than {MOST_NESTED} deep")
            return self._depth > self._base
        if mark in "]}":
            self._depth -= 1
            return self._depth >= self._base
        return self._depth > self._base or not self._base

    def _between(self, mark: str, before: str) -> Iterator[tuple[str, str | None]]:
        if mark in "[{":
            self._opened(mark, before)
        elif mark in "]}":
            yield from self._closed(mark, before)
        elif self._depth == self._base:
            yield self._value(mark, before)
        else:
            yield from self._separated(mark, before)

    def _opened(self, mark: str, before: str) -> None:
        """The whole body begins, or the array of a name."""
        outermost = self._depth == 1
        self._expect(before, _Next.BODY if outermost else _Next.ARRAY)
        if mark != ("{" if outermost and self._shape is Shape.ARRAYS else "["):
            self._refuse()
        self._next = _Next.NAME_OR_END
        self._first = True

    def _closed(self, mark: str, last: str) -> Iterator[tuple[str, str | None]]:
        """An array of values ends, or the object of arrays."""
        if self._depth < self._base - 1:
            self._expect(last, _Next.NAME_OR_END, _Next.COMMA_OR_END)
            if mark != "}":
                self._refuse()
        elif not self._base or mark != "]":
            raise NotJsonError("the brackets of an array or object do not match")
        elif not self._first or last.strip(_BLANKS):
            yield self._value(",", last)
        self._next = _Next.COMMA_OR_END if self._depth else _Next.NOTHING

    def _value(self, mark: str, text: str) -> tuple[str, str]:
        """A value ends."""
        if mark != "," or not text.strip(_BLANKS):
            raise NotJsonError("a value is missing")
        self._first = False
        return self._name, text

    def _separated(self, mark: str, before: str) -> Iterator[tuple[str, None]]:
        """Process a separator: after the name of an array, after a value, or at a wrong position."""
        if mark == ",":
            self._expect(before, _Next.COMMA_OR_END)
            self._next = _Next.NAME
            return
        name = loads(before) if self._next in {_Next.NAME, _Next.NAME_OR_END} and self._depth else None
        if not isinstance(name, str):
            self._refuse()
        self._name, self._next = name, _Next.ARRAY
        yield name, None

    def _expect(self, before: str, *wanted: _Next) -> None:
        if self._next not in wanted or before.strip(_BLANKS):
            self._refuse()

    def _refuse(self) -> NoReturn:
        raise NotJsonError(f"{self._shape.value} is needed")

    # -- the text of a value

    def _hold(self, text: str) -> None:
        self._length += len(text)
        if self._length > VALUE_LIMIT:
            raise ValueTooLargeError
        self._held.append(text)

    def _taken(self, text: str) -> str:
        self._hold(text)
        taken = text if len(self._held) == 1 else "".join(self._held)
        self._held.clear()
        self._length = 0
        return taken


def loads(text: str) -> JsonValue:
    """Parse a value whose nesting was checked. Raises: NotJsonError: it is not JSON, or would take too long."""
    if len(text) > FREE_LENGTH and sum(map(text.count, "[{,:")) > MOST_MARKS:
        raise NotJsonError(f"one value has more than {MOST_MARKS} brackets, commas and colons")
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse)
    except NotJsonError:
        raise
    except (json.JSONDecodeError, RecursionError) as error:
        raise NotJsonError(str(error)[:_SHOWN]) from None
    except ValueError:  # Python's error advises to change a setting of the server
        raise NotJsonError(f"an integer has more than {sys.get_int_max_str_digits()} digits") from None
    return value


def _refuse(text: str) -> NoReturn:
    raise NotJsonError(f"{text} is not JSON")
