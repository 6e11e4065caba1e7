"""When a job occurs: a cron expression in a time zone. Pure; the clock is the caller's.

The expressions and the rules for clock changes are those of Debian's cron, by the library cronsim:

- a job at fixed times (neither minute nor hour begins with ``*``) that the clock skips in spring occurs at the first
  moment after the gap, and one whose time comes twice in autumn occurs the first time only;
- any other follows the time that passes: ``*/15 * * * *`` occurs every 15 minutes, through both hours in autumn;
- several occurrences that fall on one moment, as those of a skipped hour do, are one.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from datetime import UTC, datetime, tzinfo
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from aiozkqueue.errors import InvalidScheduleError
from aiozkqueue.extras import needs
from aiozkqueue.moments import milliseconds_at, moment_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiozkqueue.layout.jobs import Missed

#: How far `Cron.latest` looks back at first, milliseconds; each time it has found too few, four times as far.
FIRST_LOOK: Final = 60_000
#: Occurrences that are not late decided at once; the rest is looked at when these have been put.
MOST_AT_ONCE: Final = 1000
#: After this no moment is asked for: the reckoning of dates must not run over.
_LAST_YEAR: Final = 9900
#: The names of some expressions in crontab(5) of Debian's cron.
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
        if not isinstance(given, str):  # as a file of settings may have it
            msg = f"{expression!r} is no cron expression: give a text, such as '0 8 * * *'"
            raise InvalidScheduleError(msg)
        try:
            next(self.after(0))
        except StopIteration:
            msg = f"cron {expression!r} never occurs"
            raise InvalidScheduleError(msg) from None

    def after(self, moment: int) -> Iterator[int]:
        """The occurrences later than a moment, in their order."""
        start = moment_at(moment)
        if start.year > _LAST_YEAR:
            return
        last = moment
        for occurrence in _occurrences(self._expression, start.astimezone(self._zone)):
            found = milliseconds_at(occurrence)
            # A start within a repeated hour yields what was before it, a skipped hour several times one moment.
            if found > last:
                yield found
                last = found

    def latest(self, after: int, until: int, most: int) -> list[int]:
        """The last occurrences later than ``after`` and not later than ``until``, ``most`` at most, in order.

        It costs about as much as there are to give, however long ago ``after`` is.
        """
        look = FIRST_LOOK
        while True:
            start = max(after, until - look)
            found = deque(takewhile(lambda moment: moment <= until, self.after(start)), maxlen=most)
            if len(found) == most or start == after:
                return list(found)
            look *= 4


async def load(expression: str, zone: str) -> Cron:
    """`Cron`, with the files of a zone that is not known yet read in a thread. Raises: InvalidScheduleError."""
    if zone in _zones and "cronsim" in sys.modules:
        return Cron(expression, zone)
    return await asyncio.to_thread(Cron, expression, zone)


def to_put(cron: Cron, *, last: int, now: int, missed: Missed, tolerance: int, limit: int) -> list[int]:
    """The occurrences later than ``last`` that are to be put now, in their order.

    What is at most ``tolerance`` (ms) late is put. Of what is later than that, the missed, ``"skip"`` puts none,
    ``"all"`` the newest ``limit``, and ``"last"`` the newest one, unless one that is not late stands for it.
    """
    later = takewhile(lambda moment: moment <= now, cron.after(max(last, now - tolerance - 1)))
    timely = list(islice(later, MOST_AT_ONCE))
    if missed == "skip" or last >= now - tolerance or (missed == "last" and timely):
        return timely
    late = cron.latest(last, now - tolerance - 1, limit if missed == "all" else 1)
    return late + timely


def _occurrences(expression: str, start: datetime) -> Iterator[datetime]:
    with needs("schedule"):
        from cronsim import CronSim, CronSimError  # noqa: PLC0415 - an extra, for those who use it
    try:
        return CronSim(_NICKNAMES.get(expression, expression), start)
    except CronSimError as error:
        msg = f"{expression!r} is no cron expression: {error}; give minute, hour, day, month and weekday, or @daily"
        raise InvalidScheduleError(msg) from error


#: The zones met so far; there are some six hundred.
_zones: dict[str, tzinfo] = {"UTC": UTC}


def _zone(name: str) -> tzinfo:
    zone = _zones.get(name)
    if zone is None:
        try:
            zone = _zones[name] = ZoneInfo(name)
        except (KeyError, OSError, ValueError) as error:  # not found, a folder, or no name at all
            msg = f"{name!r} is no time zone known here; give one as 'Europe/Berlin' or 'UTC'"
            raise InvalidScheduleError(msg) from error
    return zone
