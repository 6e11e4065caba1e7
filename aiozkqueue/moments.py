"""Moments and lengths of time as the package stores and compares them: whole milliseconds.

One rule: what is finer than a millisecond is rounded up. A message is never handed out before its date, a wait is never
shorter than was asked for, and two moments keep their order: what is scheduled at a date is found by a search up to it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def milliseconds_at(moment: datetime) -> int:
    """Return an aware moment in milliseconds since 1970, rounded up; exact, as no float is."""
    return -((_EPOCH - moment) // _MILLISECOND)


def milliseconds_in(seconds: float) -> int:
    """Return a length of time in milliseconds, rounded up. Less than half a microsecond counts as nothing."""
    try:
        return -(timedelta(seconds=-seconds) // _MILLISECOND)
    except OverflowError:  # millions of years
        return ceil(seconds * 1000)


def moment_at(milliseconds: int) -> datetime:
    """Return a moment given in milliseconds since 1970, in UTC."""
    return _EPOCH + timedelta(milliseconds=milliseconds)
