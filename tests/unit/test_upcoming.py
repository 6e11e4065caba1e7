"""The scheduled items that the driver of a stream knows before they are due."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.batches.upcoming import Upcoming, due_of

MOMENTS = st.lists(st.integers(1, 50), max_size=40).map(sorted)


def named(moments: list[int]) -> list[str]:
    return [f"item-t{moment}-i{number}-{number:010d}" for number, moment in enumerate(moments)]


@given(MOMENTS, st.integers(1, 10))
def test_each_known_item_is_taken_once_in_the_order_of_its_time_and_not_before_it(
    moments: list[int], limit: int
) -> None:
    upcoming, taken = Upcoming(named(moments)), list[str]()
    for now in range(52):
        while some := upcoming.take(now, limit):
            assert len(some) <= limit
            assert all(due_of(name) <= now for name in some)
            taken += some
        assert upcoming.due is None or upcoming.due > now
    assert taken == named(moments)


@given(MOMENTS.filter(bool))
def test_after_the_last_item_of_an_incomplete_list_others_may_be_due(moments: list[int]) -> None:
    upcoming = Upcoming(named(moments), complete=False)
    assert upcoming.take(moments[-1], 100) == named(moments)
    assert upcoming.due == moments[-1]


def test_nothing_is_due_in_an_empty_list() -> None:
    assert Upcoming().due is None
    assert Upcoming(complete=False).due is None
    assert due_of("item-i1-0000000001") == 0
