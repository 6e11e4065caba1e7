"""The figures of a history are exact for short times and close for long times, and use bounded memory."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.layout import End, HistoryRecord
from aiozkqueue.operations.history_report import MOST_REASONS, Summary, Times

YEAR = 365 * 86_400_000


def exact(times: list[int], share: float) -> int:
    return sorted(times)[math.ceil(share * len(times)) - 1]


@given(st.lists(st.integers(0, 2047), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_percentiles_of_times_below_two_seconds_are_exact(times: list[int], share: float) -> None:
    histogram = Times()
    for time in times:
        histogram.add(time)
    assert histogram.percentile(share) == exact(times, share)


@given(st.lists(st.integers(0, YEAR), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_percentiles_of_longer_times_are_right_within_a_thousandth(times: list[int], share: float) -> None:
    histogram = Times()
    for time in times:
        histogram.add(time)
    truth = exact(times, share)
    assert truth * (1 - 0.001) <= histogram.percentile(share) <= truth


def test_a_clock_set_back_counts_as_no_time() -> None:
    histogram = Times()
    histogram.add(-5)
    assert histogram.percentiles is not None
    assert histogram.percentiles.p99 == 0


def test_the_memory_is_bounded_for_any_times_reasons_attempts_and_periods() -> None:
    chance = random.Random(7)
    summary = Summary("orders")
    for number in range(50_000):
        ended = 1_700_000_000_000 + chance.randrange(YEAR)
        summary.add(
            HistoryRecord(
                id=f"m{number}",
                ended=ended,
                outcome=End.DEAD,
                put=ended - chance.randrange(YEAR),
                claimed=ended - chance.randrange(YEAR),
                attempts=chance.randrange(10**6),
                reason=f"no customer {number}",
            )
        )
    report = summary.report()
    assert report is not None
    assert report.ended == 50_000
    assert len(report.reasons) == MOST_REASONS
    assert sum(number for _, number in report.reasons) + report.more_reasons == 50_000
    assert len(report.spans) <= 121
    assert len(report.attempts) <= 101
    assert len(summary._waiting._counts) < 40_000
