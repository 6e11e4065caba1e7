"""The times of a job: a cron expression in a time zone. Pure; the caller provides the clock.

The expressions are those of Debian's cron, by the library cronsim, and so are the rules for clock changes:

- a job at fixed times (neither minute nor hour begins with ``*``) that the clock skips in spring occurs at the first
  moment after the gap, and one whose time comes twice in autumn occurs the first time only;
- any other job follows elapsed time: ``*/15 * * * *`` occurs every 15 minutes, through both hours in autumn;
- several occurrences at the same moment, such as those of a skipped hour, count as one.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from datetime import UTC
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final, cast
from zoneinfo import ZoneInfo

from aiozkqueue.errors import InvalidScheduleError
from aiozkqueue.extras import needs
from aiozkqueue.layout.jobs import check_length
from aiozkqueue.moments import milliseconds_at, moment_at

from .wall_clock import at_fixed_times, in_elapsed_time

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime, tzinfo

    from aiozkqueue.layout.jobs import Missed

#: How far back `Cron.latest` searches first, milliseconds; if it finds too few occurrences, four times as far.
FIRST_SPAN: Final = 60_000
#: Maximum number of occurrences decided at a time that are not late; the rest follows when these have been put.
MOST_AT_ONCE: Final = 1000
#: The latest moment considered: date arithmetic must not overflow.
_LAST_YEAR: Final = 9900
#: Nicknames of expressions, as in crontab(5) of Debian's cron.
_NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class Cron:
    """A cron expression in a time zone. Moments are milliseconds since 1970.

    Raises:
        InvalidScheduleError: not an expression, or no such zone, or it never occurs.
        MissingExtraError: the extra ``schedule`` is not installed.
    """

    __slots__ = ("_expression", "_zone")

    def __init__(self, expression: str, zone: str = "UTC") -> None:
        self._expression = expression
        self._zone = _zone(zone)
        given: object = expression
        if not isinstance(given, str):  # as a settings file may contain it
            msg = f"{expression!r} is not a cron expression: give a text, such as '0 8 * * *'"
            raise InvalidScheduleError(msg)
        check_length(expression)
        try:
            next(self.after(0))
        except StopIteration:
            msg = f"cron {expression!r} never occurs"
            raise InvalidScheduleError(msg) from None

    def after(self, moment: int) -> Iterator[int]:
        """Return the occurrences after a moment, in order."""
        start = moment_at(moment)
        if start.year > _LAST_YEAR:
            return
        last = moment
        for occurrence in _occurrences(self._expression, start.replace(microsecond=0), self._zone):
            found = milliseconds_at(occurrence)
            # A start within a repeated hour yields earlier moments, and a skipped hour yields one moment several times.
            if found > last:
                yield found
                last = found

    def latest(self, after: int, until: int, most: int) -> list[int]:
        """Return up to ``most`` of the last occurrences after ``after`` and not later than ``until``, in order.

        The cost depends on the number of results, not on how long ago ``after`` is.
        """
        span = FIRST_SPAN
        while True:
            start = max(after, until - span)
            found = deque(takewhile(lambda moment: moment <= until, self.after(start)), maxlen=most)
            if len(found) == most or start == after:
                return list(found)
            span *= 4


async def load(expression: str, zone: str) -> Cron:
    """Return a `Cron`; the files of a new time zone are read in a thread.

    The event loop runs other tasks first, because the times of a job take up to a millisecond to compute.

    Raises: InvalidScheduleError, MissingExtraError.
    """
    await asyncio.sleep(0)
    if isinstance(cast("object", zone), str) and zone in _zones and "cronsim" in sys.modules:
        return Cron(expression, zone)
    return await asyncio.to_thread(Cron, expression, zone)


def to_put(cron: Cron, *, last: int, now: int, missed: Missed, tolerance: int, limit: int) -> list[int]:
    """Return the occurrences after ``last`` that must be put now, in order.

    Occurrences up to ``tolerance`` (ms) late are put. Later ones are missed: ``"skip"`` puts none of them, ``"all"``
    the newest ``limit``, and ``"last"`` the newest one, unless an occurrence that is not late replaces it.
    """
    later = takewhile(lambda moment: moment <= now, cron.after(max(last, now - tolerance - 1)))
    timely = list(islice(later, MOST_AT_ONCE))
    if missed == "skip" or last >= now - tolerance or (missed == "last" and timely):
        return timely
    late = cron.latest(last, now - tolerance - 1, limit if missed == "all" else 1)
    return late + timely


def _occurrences(expression: str, start: datetime, zone: tzinfo) -> Iterator[datetime]:
    fields = _NICKNAMES.get(expression, expression)
    matches = partial(_matches, fields)
    if zone is UTC:
        return matches(start)
    minute_and_hour = fields.split()[-5:-3]
    if any(field.startswith("*") for field in minute_and_hour):
        return in_elapsed_time(matches, start, zone)
    return at_fixed_times(matches, start, zone)


def _matches(expression: str, start: datetime) -> Iterator[datetime]:
    """Return the times that match after a time, both in UTC: the library loses some in zones with clock changes."""
    with needs("schedule"):
        from cronsim import CronSim, CronSimError  # noqa: PLC0415 - an extra, for those who use it
    try:
        return CronSim(expression, start)
    except CronSimError as error:
        msg = f"{expression!r} is not a cron expression: {error}; give minute, hour, day, month and weekday, or @daily"
        raise InvalidScheduleError(msg) from error


#: The zones used so far; there are about six hundred in total.
_zones: dict[str, tzinfo] = {"UTC": UTC}


def _zone(name: str) -> tzinfo:
    try:
        zone = _zones.get(name)
        if zone is None:
            zone = _zones[name] = ZoneInfo(name)
    except (KeyError, OSError, TypeError, ValueError) as error:  # not found, a folder, or not a valid name
        msg = f"{name!r} is not a known time zone; give one such as 'Europe/Berlin' or 'UTC'"
        raise InvalidScheduleError(msg) from error
    return zone
