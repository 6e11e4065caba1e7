"""Times finer than a millisecond are rounded up."""

from __future__ import annotations

import ast
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aiozkqueue
from aiozkqueue.moments import milliseconds_at, milliseconds_in, moment_at

MILLISECOND = timedelta(milliseconds=1)
moments = st.datetimes(datetime(1971, 1, 1), datetime(9998, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - Hypothesis requires naive bounds


@given(moments)
def test_a_stored_moment_is_rounded_up_by_less_than_a_millisecond(moment: datetime) -> None:
    assert moment <= moment_at(milliseconds_at(moment)) < moment + MILLISECOND


@given(moments, moments)
def test_two_moments_keep_their_order(first: datetime, second: datetime) -> None:
    assert (milliseconds_at(first) <= milliseconds_at(second)) or first > second


@given(st.integers(0, 253_402_300_799_999))
def test_milliseconds_are_read_back_unchanged(milliseconds: int) -> None:
    assert milliseconds_at(moment_at(milliseconds)) == milliseconds


@pytest.mark.parametrize(
    ("seconds", "milliseconds"),
    [(0, 0), (1.1, 1100), (0.0004, 1), (0.0015, 2), (0.29, 290), (2.675, 2675), (-0.0015, -1), (1e9, 10**12)],
)
def test_a_duration_is_rounded_up_but_not_for_floating_point_noise(seconds: float, milliseconds: int) -> None:
    assert milliseconds_in(seconds) == milliseconds


def test_a_duration_beyond_any_date_raises_no_error() -> None:
    assert milliseconds_in(1e20) == 10**23
    assert milliseconds_in(1e307) == int(1e307) * 1000


def test_time_zones_make_no_difference() -> None:
    moment = datetime(2026, 7, 1, 12, 0, 0, 500, tzinfo=timezone(timedelta(hours=2)))
    assert milliseconds_at(moment) == milliseconds_at(moment.astimezone(UTC)) == 1_782_900_000_001


def test_nothing_else_in_the_package_rounds_seconds_to_milliseconds() -> None:
    """The only exception is `ServerClock`, which rounds its bounds of ZooKeeper's time down or up on purpose."""
    package = Path(aiozkqueue.__file__).parent
    wrong: list[str] = []
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package).as_posix()
        if name in {"moments.py", "runtime/clock.py"} or "simulator" in name:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in {"round", "int", "ceil"}
            ):
                wrong += [
                    f"{name}:{node.lineno}"
                    for part in ast.walk(node)
                    if isinstance(part, ast.Constant) and part.value == 1000
                ]
    assert wrong == []
