"""Around the clock changes of unusual zones, the occurrences are those that a search of every minute finds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiozkqueue.moments import milliseconds_at, moment_at
from aiozkqueue.schedule.cron import Cron

DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)

#: Clock changes by half an hour, by two hours and by a day, at midnight, within an hour, and of the standard offset.
CHANGES = [
    ("Australia/Lord_Howe", "2026-04-05"),
    ("Australia/Lord_Howe", "2026-10-04"),
    ("America/Havana", "2026-03-08"),
    ("America/Havana", "2026-11-01"),
    ("America/Santiago", "2026-04-05"),
    ("America/Santiago", "2026-09-06"),
    ("Africa/Cairo", "2027-04-30"),
    ("Africa/Cairo", "2026-10-30"),
    ("Pacific/Chatham", "2026-04-05"),
    ("Pacific/Chatham", "2026-09-27"),
    ("Antarctica/Troll", "2027-03-28"),
    ("Antarctica/Troll", "2026-10-25"),
    ("Africa/Casablanca", "2027-02-07"),
    ("Europe/Berlin", "2027-03-28"),
    ("Europe/Berlin", "2026-10-25"),
    ("America/St_Johns", "2007-11-04"),
    ("Asia/Pyongyang", "2015-08-15"),
    ("America/Caracas", "2016-05-01"),
    ("Pacific/Apia", "2011-12-30"),
]


class Field(NamedTuple):
    text: str
    values: frozenset[int]


def field(count: int, *, several: int = 3) -> st.SearchStrategy[Field]:
    """Return a field of an expression, with the values that it matches among ``count`` values from 0."""
    steps = st.integers(1, count - 1).map(lambda n: Field(f"*/{n}", frozenset(range(0, count, n))))
    lists = st.frozensets(st.integers(0, count - 1), min_size=1, max_size=several).map(
        lambda values: Field(",".join(map(str, sorted(values))), values)
    )
    return st.one_of(st.just(Field("*", frozenset(range(count)))), steps, lists)


@lru_cache(maxsize=1)
def clock(zone: ZoneInfo, date: datetime) -> list[tuple[datetime, datetime]]:
    """Return each minute around a date, with the local time of the zone."""
    moments = [date - 2 * DAY + n * MINUTE for n in range(4 * 24 * 60)]
    return [(moment, moment.astimezone(zone).replace(tzinfo=None, fold=0)) for moment in moments]


def found(seconds: set[int], minute: Field, hour: Field, date: datetime, zone: ZoneInfo) -> list[datetime]:
    """Return the occurrences around ``date`` of a job that occurs on the day of ``date`` and on the day before.

    With fixed times, each time of the day occurs once: at its first moment, or at the end of the gap that skips it.
    """
    fixed = not (minute.text.startswith("*") or hour.text.startswith("*"))
    moments: set[datetime] = set()
    seen: set[datetime] = set()
    previous = clock(zone, date)[0][1] - MINUTE
    dates = {date.date(), (date - DAY).date()}
    for moment, shown in clock(zone, date):
        skipped = [previous + n * MINUTE for n in range(1, (shown - previous) // MINUTE)] if fixed else []
        for time in (*skipped, shown):
            matches = time.minute in minute.values and time.hour in hour.values
            if matches and time.date() in dates and not (fixed and time in seen):
                moments |= {moment + timedelta(seconds=second if time == shown else 0) for second in seconds}
                seen.add(time)
        previous = shown
    return sorted(moments)


@pytest.mark.parametrize(("zone_name", "day"), CHANGES)
@given(st.sets(st.sampled_from([0, 15, 59]), min_size=1), field(60), field(24), st.integers(0, 4 * 24 * 60))
@settings(max_examples=12, deadline=None)
@pytest.mark.timeout(120)
def test_each_time_around_a_clock_change_occurs_as_documented(
    zone_name: str, day: str, seconds: set[int], minute: Field, hour: Field, minutes: int
) -> None:
    zone = ZoneInfo(zone_name)
    date = datetime.fromisoformat(day).replace(tzinfo=UTC)
    before = date - DAY
    days = f"{before.day},{date.day} {before.month},{date.month} *"
    expression = f"{minute.text} {hour.text} {days}"
    if seconds != {0}:
        expression = f"{','.join(map(str, sorted(seconds)))} {expression}"
    start = date - 2 * DAY + minutes * MINUTE
    after = Cron(expression, zone_name).after(milliseconds_at(start))
    moments = takewhile(lambda moment: moment < date + 2 * DAY, map(moment_at, after))
    expected = [moment for moment in found(seconds, minute, hour, date, zone) if moment > start]
    assert list(moments) == expected


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("expression", "zone", "start", "expected"),
    [
        ("0 30 2 * * *", "Europe/Berlin", "2027-03-28T00:00", ["27-03-28 01:00", "27-03-29 00:30"]),
        ("0 30 2 * * *", "Europe/Berlin", "2026-10-25T00:00", ["26-10-25 00:30", "26-10-26 01:30"]),
        ("*/30 9 * * *", "Australia/Lord_Howe", "2026-10-03T00:00", ["26-10-03 22:00", "26-10-03 22:30"]),
        ("*/20 1 30 4 *", "Africa/Cairo", "2027-04-29T10:00", ["27-04-29 22:00", "27-04-29 22:20"]),
        ("31 * 4 * 7", "America/St_Johns", "2007-11-02T12:00", ["07-11-04 04:01", "07-11-04 05:01"]),
    ],
)
def test_a_clock_change_neither_repeats_nor_loses_an_occurrence(
    expression: str, zone: str, start: str, expected: list[str]
) -> None:
    moment = datetime.fromisoformat(start).replace(tzinfo=UTC)
    after = Cron(expression, zone).after(milliseconds_at(moment))
    assert [moment_at(occurrence).strftime("%y-%m-%d %H:%M") for occurrence in islice(after, 2)] == expected
