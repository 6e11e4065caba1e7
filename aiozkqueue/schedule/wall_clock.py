"""The times that the clock of a zone shows. Pure.

A *wall time* is the date and time that the clock of a zone shows, as a datetime labelled UTC. Two moments can have the
same wall time, and a wall time can be skipped. All times are whole seconds.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import tzinfo

    #: Returns the wall times that an expression matches after a wall time, in order.
    Matches = Callable[[datetime], Iterator[datetime]]

_SECOND: Final = timedelta(seconds=1)
#: The steps of the search for a clock change: no zone has had two changes within a day.
_STEP: Final = timedelta(days=1)


def at_fixed_times(matches: Matches, start: datetime, zone: tzinfo) -> Iterator[datetime]:
    """Return a moment for each matching wall time, in order; the first of them may be as early as a clock change ago.

    It is the first moment with this wall time, or the first one after the gap that skips it.
    """
    return (_first_moment(wall, zone) for wall in matches(start + _offset(start, zone)))


def in_elapsed_time(matches: Matches, start: datetime, zone: tzinfo) -> Iterator[datetime]:
    """Return each moment after ``start`` whose wall time matches, in order."""
    change: datetime | None = start
    while change is not None:
        last, change = change, None
        offset = _offset(last + _SECOND, zone)
        for wall in matches(last + offset):
            change = _change(offset, last + _SECOND, wall - offset, zone)
            if change is not None:  # the clock shows other wall times from here on
                change -= _SECOND
                break
            last = wall - offset
            yield last


def _first_moment(wall: datetime, zone: tzinfo) -> datetime:
    moment = wall.replace(tzinfo=zone).astimezone(UTC)
    if moment + _offset(moment, zone) == wall:
        return moment
    # By the offset after the gap, a skipped time is a moment before the gap, and by the offset before it, one after it.
    before = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return _change(_offset(before, zone), before, moment, zone) or moment


def _change(offset: timedelta, start: datetime, until: datetime, zone: tzinfo) -> datetime | None:
    """Return the first moment from ``start`` to ``until`` at which the zone's offset is not this one."""
    if _offset(start, zone) != offset:
        return start
    while start < until:
        following = min(start + _STEP, until)
        if _offset(following, zone) != offset:
            break
        start = following
    else:
        return None
    while following - start > _SECOND:
        middle = start + (following - start) // (2 * _SECOND) * _SECOND
        if _offset(middle, zone) == offset:
            start = middle
        else:
            following = middle
    return following


def _offset(moment: datetime, zone: tzinfo) -> timedelta:
    return cast("timedelta", moment.astimezone(zone).utcoffset())
