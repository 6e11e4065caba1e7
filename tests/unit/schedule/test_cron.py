"""The occurrences of a job are those of Debian's cron, also at clock changes."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiozkqueue.errors import InvalidScheduleError
from aiozkqueue.schedule.cron import Cron, to_put

MINUTE = 60_000
BERLIN = "Europe/Berlin"


def ms(text: str, zone: str = "UTC") -> int:
    """Return a moment in milliseconds. For a local time that occurs twice, it is the first one."""
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def utc(moments: list[int]) -> list[str]:
    return [datetime.fromtimestamp(moment / 1000, UTC).strftime("%m-%d %H:%M:%S") for moment in moments]


def following(expression: str, zone: str, after: str, count: int) -> list[str]:
    return utc(list(islice(Cron(expression, zone).after(ms(after, zone)), count)))


def test_a_time_of_day_follows_its_zone_in_summer_and_in_winter() -> None:
    assert following("0 3 * * *", BERLIN, "2026-03-27T12:00", 3) == [
        "03-28 02:00:00",
        "03-29 01:00:00",
        "03-30 01:00:00",
    ]


def test_a_time_skipped_by_the_clock_occurs_once_right_after_the_gap() -> None:
    assert following("0,30 2 * * *", BERLIN, "2026-03-28T12:00", 2) == ["03-29 01:00:00", "03-30 00:00:00"]


def test_a_repeated_time_occurs_the_first_time_only() -> None:
    assert following("30 2 * * *", BERLIN, "2026-10-24T12:00", 2) == ["10-25 00:30:00", "10-26 01:30:00"]


def test_a_scheduler_started_in_the_repeated_hour_repeats_no_occurrence_of_the_first() -> None:
    second_quarter_past_two = ms("2026-10-25T01:15")  # UTC: the clock shows 02:15 for the second time
    assert utc(list(islice(Cron("30 2 * * *", BERLIN).after(second_quarter_past_two), 1))) == ["10-26 01:30:00"]


def test_a_step_of_fifteen_minutes_follows_elapsed_time() -> None:
    autumn = Cron("*/15 * * * *", BERLIN).after(ms("2026-10-25T01:45", BERLIN))
    moments = list(islice(autumn, 12))
    assert [after - before for before, after in pairwise(moments)] == [15 * MINUTE] * 11
    spring = list(islice(Cron("*/15 * * * *", BERLIN).after(ms("2026-03-29T01:30", BERLIN)), 8))
    assert [after - before for before, after in pairwise(spring)] == [15 * MINUTE] * 7


def test_six_fields_begin_with_seconds() -> None:
    assert following("*/20 * * * * *", "UTC", "2026-01-01T00:00", 3) == [
        "01-01 00:00:20",
        "01-01 00:00:40",
        "01-01 00:01:00",
    ]


@pytest.mark.parametrize(
    ("nickname", "first"),
    [
        ("@yearly", "01-01 00:00:00"),
        ("@annually", "01-01 00:00:00"),
        ("@monthly", "07-01 00:00:00"),
        ("@weekly", "06-21 00:00:00"),  # a Sunday
        ("@daily", "06-17 00:00:00"),
        ("@midnight", "06-17 00:00:00"),
        ("@hourly", "06-16 12:00:00"),
    ],
)
def test_crontab_nicknames_are_valid_expressions(nickname: str, first: str) -> None:
    assert following(nickname, "UTC", "2026-06-16T11:30", 1) == [first]


@pytest.mark.parametrize(("nickname", "fields"), [("@daily", "0 0 * * *"), ("@hourly", "0 * * * *")])
def test_a_nickname_follows_clock_changes_as_its_fields_do(nickname: str, fields: str) -> None:
    for start in ("2026-03-28T12:00", "2026-10-24T12:00"):
        assert following(nickname, BERLIN, start, 30) == following(fields, BERLIN, start, 30)


@pytest.mark.parametrize(
    "expression", ["@reboot", "", "* * * *", "61 * * * *", "0 0 31 2 *", "0 0 30 2 *", "every day", "* * * * * * *"]
)
def test_an_expression_that_is_invalid_or_never_occurs_is_refused(expression: str) -> None:
    with pytest.raises(InvalidScheduleError):
        Cron(expression)


def test_an_expression_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(InvalidScheduleError, match="has 5008 characters, more than 1000"):
        Cron(f"{'9' * 5000} * * * *")


@pytest.mark.parametrize("expression", [5, None, ["* * * * *"]])
def test_an_expression_that_is_not_text_is_refused(expression: Any) -> None:
    with pytest.raises(InvalidScheduleError, match=r"is not a cron expression: give a text, such as '0 8 \* \* \*'"):
        Cron(expression)


@pytest.mark.parametrize("zone", ["", "Mars/Olympus", "../../etc/passwd", "Europe"])
def test_an_unknown_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidScheduleError, match="time zone"):
        Cron("* * * * *", zone)


MOMENTS = st.integers(ms("2026-01-01T00:00"), ms("2027-12-31T00:00"))
EXPRESSIONS = st.sampled_from(["*/7 * * * *", "0 * * * *", "30 2 * * *", "0,30 1-3 * * *", "15 0 1 * *", "5 4 * * 0"])
ZONES = st.sampled_from(["UTC", BERLIN, "America/Havana", "Australia/Lord_Howe", "Asia/Kathmandu"])


@given(EXPRESSIONS, ZONES, MOMENTS, st.integers(0, 40 * 24 * 60), st.integers(1, 50))
@settings(max_examples=200, deadline=None)
def test_the_latest_occurrences_are_the_last_of_all(
    expression: str, zone: str, after: int, minutes: int, most: int
) -> None:
    cron = Cron(expression, zone)
    until = after + minutes * MINUTE
    every = []
    for moment in cron.after(after):
        if moment > until:
            break
        every.append(moment)
    assert every == sorted(set(every))
    assert cron.latest(after, until, most) == every[-most:]


@given(EXPRESSIONS, ZONES, MOMENTS, st.lists(st.integers(0, 3000), max_size=30), st.integers(0, 120))
@settings(max_examples=200, deadline=None)
def test_each_timely_occurrence_is_put_once_however_often_the_scheduler_checks(
    expression: str, zone: str, start: int, steps: list[int], tolerance: int
) -> None:
    cron = Cron(expression, zone)
    now, last = start, start
    put: list[int] = []
    for step in steps:
        now += step * MINUTE // 10
        due = to_put(cron, last=last, now=now, missed="all", tolerance=tolerance * MINUTE, limit=1000)
        put += due
        last = due[-1] if due else last
    assert put == cron.latest(start, now, 100_000)


def test_each_policy_makes_up_for_the_right_missed_occurrences() -> None:
    cron = Cron("0 * * * *")
    last, now = ms("2026-01-01T00:00"), ms("2026-01-01T05:30")

    def due(missed: str, *, tolerance: int = MINUTE, limit: int = 100) -> list[str]:
        moments = to_put(cron, last=last, now=now, missed=missed, tolerance=tolerance, limit=limit)  # type: ignore[arg-type]
        return [text[6:11] for text in utc(moments)]

    assert due("skip") == []
    assert due("last") == ["05:00"]
    assert due("all") == ["01:00", "02:00", "03:00", "04:00", "05:00"]
    assert due("all", limit=2) == ["04:00", "05:00"]
    assert due("skip", tolerance=30 * MINUTE) == ["05:00"]
    assert due("last", tolerance=90 * MINUTE) == ["04:00", "05:00"]
    assert due("all", tolerance=30 * MINUTE, limit=1) == ["04:00", "05:00"]


def test_the_cost_of_years_of_missed_occurrences_depends_only_on_those_made_up_for() -> None:
    cron = Cron("* * * * * *")
    now = ms("2026-01-01T00:00")
    due = to_put(cron, last=ms("2006-01-01T00:00"), now=now, missed="all", tolerance=0, limit=3)
    assert due == [now - 3000, now - 2000, now - 1000, now]
