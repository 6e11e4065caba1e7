"""Times and durations as the package stores and compares them: whole milliseconds.

Fractions of a millisecond are rounded up. So a message is never delivered before its due time, a wait is never shorter
than requested, and two times keep their order: a search up to a time finds the messages that are scheduled at that
time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import ceil
from typing import Final

LONGEST_DELAY: Final = 1_000_000_000.0
"""The longest delay and lifetime of a message in seconds, about 31 years."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def milliseconds_at(moment: datetime) -> int:
    """Return an aware datetime in milliseconds since 1970, rounded up and exact, as a float would not be."""
    return -((_EPOCH - moment) // _MILLISECOND)


def milliseconds_in(seconds: float) -> int:
    """Return a duration in milliseconds, rounded up. Less than half a microsecond counts as 0."""
    try:
        return -(timedelta(seconds=-seconds) // _MILLISECOND)
    except OverflowError:  # millions of years
        return ceil(Fraction(seconds) * 1000)


def moment_at(milliseconds: int) -> datetime:
    """Return a time given in milliseconds since 1970 as a datetime in UTC."""
    return _EPOCH + timedelta(milliseconds=milliseconds)
