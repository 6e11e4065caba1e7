"""An outage is logged rarely, and less often the longer it lasts. Frequent losses are counted."""

from __future__ import annotations

import pytest

from aiozkqueue.zookeeper.outage import Losses, Outage


def test_an_outage_is_reported_after_ten_seconds_one_minute_and_then_every_five_minutes() -> None:
    outage = Outage(1000.0)
    reported = [second for second in range(1000) if outage.must_log(1000.0 + second)]
    assert reported == [10, 60, 360, 660, 960]


def test_several_overdue_outage_reports_become_one() -> None:
    outage = Outage(5.0)
    assert [outage.must_log(now) for now in (14.9, 400.0, 400.0, 664.9, 665.0)] == [False, True, False, False, True]
    assert outage.lasted(400.0) == pytest.approx(395.0)


@pytest.mark.parametrize(("servers", "singly"), [(1, 3), (3, 9), (5, 10)])
def test_a_connection_that_is_lost_each_second_is_reported_once_and_then_every_five_minutes(
    servers: int, singly: int
) -> None:
    losses, single = Losses(servers), 0
    reported = list[tuple[int, float]]()
    for second in range(1000):
        if (report := losses.count(5.0 + second)) is not None:
            reported.append(report)
        single += not losses.frequent
    assert single == singly
    assert reported == [(singly + 1, float(singly)), (300, 300.0), (300, 300.0), (300, 300.0)]


def test_rare_losses_are_logged_one_by_one() -> None:
    losses = Losses(5)
    for hour in range(100):
        assert losses.count(3600.0 * hour) is None
        assert not losses.frequent


def test_losses_after_a_calm_time_are_logged_one_by_one_again() -> None:
    losses = Losses(5)
    for second in range(40):
        losses.count(float(second))
    assert losses.frequent
    assert losses.count(2000.0) == (40, 2000.0)
    assert not losses.frequent
    assert losses.count(2001.0) is None


def test_two_planned_restarts_of_a_single_server_cause_no_report() -> None:
    losses = Losses(1)
    assert [losses.count(now) for now in (0.0, 20.0, 200.0)] == [None] * 3
    assert not losses.frequent
    assert losses.count(220.0) == (4, 220.0)
