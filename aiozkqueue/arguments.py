"""Checks of arguments that many calls have: durations, counts, collections and text."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TypeVar, cast

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.moments import LONGEST_DELAY

E = TypeVar("E")

Seconds = float | timedelta
"""A duration: seconds, or a ``timedelta``."""

#: Types that are iterable, but stand for one value.
_SINGLE: tuple[type[object], ...] = (str, bytes, bytearray, memoryview, Mapping)


def seconds(value: object, option: str, *, endless: bool = True) -> float | None:
    """Return a duration in seconds; None means no limit, which is an error unless ``endless`` is true.

    Raises:
        InvalidOptionError: not a number or timedelta, negative, or not a number at all (NaN).
    """
    if value is None:
        return None
    if type(value) is int and value >= 0:  # the usual case; every operation on a message checks one or two
        return _finite(_float(value))
    if isinstance(value, timedelta):
        number = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = _float(value)
    else:
        ever = " or None (no limit)" if endless else ""
        msg = f"{option} takes seconds (float or timedelta){ever}, not {type(value).__name__}"
        raise InvalidOptionError(msg)
    if math.isnan(number) or number < 0:
        ever = "0 (at once), a positive number of seconds, or None (no limit)"
        msg = f"{option}={value!r}: give {ever if endless else 'a finite number of seconds, 0 or more'}"
        raise InvalidOptionError(msg)
    return _finite(number)


def required_seconds(value: object, option: str) -> float:
    """Return a duration of at most `LONGEST_DELAY`. Raises: InvalidOptionError."""
    number = seconds(value, option, endless=False)
    if number is None or number > LONGEST_DELAY:
        msg = f"{option}={value!r}: give a finite number of seconds, at most {LONGEST_DELAY:.0f}"
        raise InvalidOptionError(msg)
    return number


def _finite(number: float) -> float | None:
    return None if math.isinf(number) else number


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # an integer beyond all floats
        return math.copysign(math.inf, number > 0 or -1)


def positive(value: object, option: str) -> int:
    """Return a count of at least one, at most that of the longest list. Raises: InvalidOptionError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        msg = f"{option}={value!r}: give an integer of at least 1"
        raise InvalidOptionError(msg)
    return min(value, sys.maxsize)


def collection(values: Iterable[E], option: str, of: str) -> Iterable[E]:
    """Return a collection of values. A str, bytes or mapping is iterable too, but certainly a mistake.

    Raises: InvalidOptionError: it is one of these, or not a collection at all.
    """
    if isinstance(values, _SINGLE) or not isinstance(cast("object", values), Iterable):
        msg = (
            f"{option} takes a collection of {of}, not one {type(cast('object', values)).__name__}; put it into a list"
        )
        raise InvalidOptionError(msg)
    return values


def flag(value: object, option: str) -> bool:
    """Return a value that must be True or False: a text such as ``"false"`` counts as true in Python.

    Raises: InvalidOptionError.
    """
    if not isinstance(value, bool):
        msg = f"{option} takes True or False, not {type(value).__name__}"
        raise InvalidOptionError(msg)
    return value


def is_choice(value: object, *choices: str) -> bool:
    """Whether a value is one of these texts. Values of other types are not compared: an array raises then."""
    return isinstance(value, str) and value in choices


def is_storable(text: str) -> bool:
    """Whether a text is not empty, and has no lone surrogates, which UTF-8 cannot encode."""
    return bool(text) and text.encode(errors="replace").decode() == text


def plain(text: str) -> str:
    """Return the text as an exact str, because a member of a str enumeration would be formatted as its name."""
    return text if type(text) is str else str.__str__(text)


def text(value: object, option: str, meaning: str) -> str:
    """Return a value that must be a str; ``meaning`` describes it. Raises: InvalidOptionError."""
    if not isinstance(value, str):
        msg = f"{option} takes {meaning}, a str, not {type(value).__name__}"
        raise InvalidOptionError(msg)
    return plain(value)
