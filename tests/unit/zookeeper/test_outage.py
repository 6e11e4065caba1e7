"""An outage is logged rarely, and less often the longer it lasts."""

from __future__ import annotations

import pytest

from aiozkqueue.zookeeper.outage import Outage


def test_an_outage_is_reported_after_ten_seconds_one_minute_and_then_every_five_minutes() -> None:
    outage = Outage(1000.0)
    reported = [second for second in range(1000) if outage.must_log(1000.0 + second)]
    assert reported == [10, 60, 360, 660, 960]


def test_several_overdue_outage_reports_become_one() -> None:
    outage = Outage(5.0)
    assert [outage.must_log(now) for now in (14.9, 400.0, 400.0, 664.9, 665.0)] == [False, True, False, False, True]
    assert outage.lasted(400.0) == pytest.approx(395.0)
