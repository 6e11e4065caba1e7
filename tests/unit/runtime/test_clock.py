"""Timers, and ZooKeeper's time as estimated from a local clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiozkqueue.queue.candidates.watches import Timers
from aiozkqueue.queue.state.claim import EPHEMERAL_CAP, SessionBudget
from aiozkqueue.runtime.clock import SAMPLE_LIFETIME, TRUSTED, Clock, ServerClock
from aiozkqueue.zookeeper import MultiError, NoAuthError, Stat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.zookeeper import Operation, Result, ZooKeeper

EPOCH = 1 << 32


class Leader:
    """The part of a client that a server clock uses. Its clock is 7,000 s ahead of the monotonic clock."""

    last_zxid = EPOCH
    generation = 1

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.refuses = False
        self.asked: list[str] = []

    async def multi(self, operations: Sequence[Operation]) -> list[Result]:
        path = operations[0].path
        self.asked.append(path)
        if self.refuses:
            raise MultiError(0, NoAuthError(path))
        mtime = int(7_000_000 + self.clock.now * 1000)
        return [path, Stat(*[0] * 11)._replace(mtime=mtime), None]


class ManualClock(Clock):
    now = 1000.0

    slept = 0.0

    def time(self) -> float:
        return self.now + self.slept - 950.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def leader(clock: ManualClock) -> Leader:
    return Leader(clock)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def server(clock: ManualClock, leader: Leader) -> ServerClock:
    return ServerClock(clock, cast("ZooKeeper", leader))


def test_the_local_clock_is_used_before_the_first_sample(server: ServerClock) -> None:
    assert not server.sampled
    assert server.now() == 50_000


def test_the_sample_with_the_fastest_reply_is_the_best(server: ServerClock, clock: ManualClock) -> None:
    # The server's clock is 7,000,000 ms ahead of the local one; replies take 300 ms, then 10 ms, then 200 ms.
    for travelled in (0.3, 0.01, 0.2):
        server.observe(int(7_000_000 + (clock.now - travelled) * 1000))
        clock.now += 1
    assert server.sampled
    assert server.now() == pytest.approx(7_000_000 + clock.now * 1000 - 10, abs=1)


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 20)), min_size=1, max_size=40))
def test_the_time_is_never_ahead_of_the_servers(samples: list[tuple[float, float]]) -> None:
    clock = ManualClock()
    server = ServerClock(clock, cast("ZooKeeper", Leader()))
    for travelled, pause in samples:
        clock.now += pause
        server.observe(int(7_000_000 + (clock.now - travelled) * 1000))
        assert server.now() <= 7_000_000 + clock.now * 1000


def test_a_new_leader_discards_the_samples_of_the_last(server: ServerClock, clock: ManualClock, leader: Leader) -> None:
    server.observe(9_000_000)
    leader.last_zxid = 2 * EPOCH
    assert not server.sampled
    server.observe(5_000_000)  # the clock of the new leader is behind
    assert server.sampled
    assert server.now() == pytest.approx(5_000_000, abs=1)
    clock.now += 1
    assert server.now() == pytest.approx(5_001_000, abs=1)


def test_a_new_session_discards_the_samples_of_the_last(
    server: ServerClock, clock: ManualClock, leader: Leader
) -> None:
    server.observe(9_000_000, server.local())
    leader.generation = 2
    assert not server.sampled_within(TRUSTED)
    assert not server.bounded
    server.observe(16_200_000, server.local())  # the virtual machine was paused with all its clocks
    assert server.now() == 16_200_000
    assert server.time_at(clock.now) == 16_200_001


def test_a_server_clock_that_was_set_back_is_followed_eventually(server: ServerClock, clock: ManualClock) -> None:
    server.observe(9_000_000)
    for passed in range(1, 5):
        clock.now += SAMPLE_LIFETIME * 0.7
        server.observe(5_000_000 + int(passed * SAMPLE_LIFETIME * 700))
    assert server.now() == pytest.approx(5_000_000 + 4 * SAMPLE_LIFETIME * 700, abs=1)


@pytest.mark.parametrize("step", [-3_600_000, -5, 5, 3_600_000])
def test_a_server_clock_that_was_set_is_followed_at_the_next_write(
    server: ServerClock, clock: ManualClock, step: int
) -> None:
    server.observe(9_000_000, server.local())
    clock.now += 1
    server.observe(9_001_000 + step, server.local())
    assert server.now() == 9_001_000 + step
    assert server.time_at(clock.now) == 9_001_001 + step


def test_a_late_reply_does_not_discard_better_samples(server: ServerClock, clock: ManualClock) -> None:
    server.observe(9_000_000, server.local())
    sent = server.local()
    clock.now += 1
    server.observe(9_000_000, sent)
    assert server.now() == 9_001_000
    assert server.time_at(clock.now) == 9_001_001


def test_a_write_that_was_answered_after_an_outage_is_not_a_recent_sample(server: ServerClock) -> None:
    server.observe(9_000_000, server.local() - TRUSTED * 1000 - 1)
    assert server.sampled
    assert not server.sampled_within(TRUSTED)
    assert not server.bounded


def test_a_sample_bounds_the_time_for_at_most_two_periods(server: ServerClock, clock: ManualClock) -> None:
    server.observe(9_000_000)  # a sample of a clock that has just been set back by 1,000 s
    for wait in (SAMPLE_LIFETIME - 1, SAMPLE_LIFETIME, 2):
        clock.now += wait
        server.observe(8_000_000 + int((clock.now - 1000) * 1000))
    assert server.now() == 8_000_000 + int((clock.now - 1000) * 1000)


def test_an_old_sample_does_not_count_as_a_measurement(server: ServerClock, clock: ManualClock, leader: Leader) -> None:
    server.observe(9_000_000, server.local())
    clock.now += TRUSTED
    assert server.sampled_within(TRUSTED)
    assert server.bounded
    clock.now += 1
    assert server.sampled
    assert not server.sampled_within(TRUSTED)
    assert not server.bounded
    server.observe(1_000_000)  # the old sample is no longer a bound
    assert server.now() == 1_000_000
    leader.last_zxid = 2 * EPOCH
    assert not server.sampled_within(TRUSTED)


def test_a_sample_from_before_a_suspension_does_not_count_as_a_measurement(
    server: ServerClock, clock: ManualClock
) -> None:
    server.observe(9_000_000, server.local())
    clock.slept += 7200
    assert not server.sampled_within(TRUSTED)
    assert not server.bounded
    assert server.now() == 9_000_000  # still not after the true time
    server.observe(16_200_000, server.local())  # a sample of a write that may have been sent before
    assert not server.sampled_within(TRUSTED)
    assert not server.bounded
    server.observe(16_200_000, server.local())
    assert server.sampled_within(TRUSTED)
    assert server.bounded
    assert server.now() == 16_200_000


def test_a_reply_that_was_read_after_a_suspension_does_not_count_as_a_measurement(
    server: ServerClock, clock: ManualClock
) -> None:
    server.observe(9_000_000, server.local())
    sent = server.local()
    clock.slept += 7200
    server.observe(9_000_001, sent)
    assert not server.sampled_within(TRUSTED)
    assert not server.bounded


def test_a_slow_drift_of_the_date_keeps_the_measurement(server: ServerClock, clock: ManualClock) -> None:
    for _ in range(10):
        clock.slept += 0.5
        server.observe(9_000_000, server.local())
        assert server.bounded


@given(st.lists(st.tuples(st.integers(0, 100), st.sampled_from("abc"))), st.integers(0, 100), st.integers(1, 5))
def test_timers_return_each_ended_entry_once_and_the_earliest_first(
    entries: list[tuple[int, str]], now: int, limit: int
) -> None:
    timers = Timers()
    for entry in entries:
        timers.add(*entry)
    assert timers.next == min((due for due, _ in entries), default=None)
    ended: list[tuple[int, str]] = []
    while some := timers.ended(now, limit):
        assert len(some) <= limit
        ended += some
    assert ended == sorted({entry for entry in entries if entry[0] <= now})
    assert len(timers) == len({entry for entry in entries if entry[0] > now})


def test_a_timer_can_be_added_again_after_it_ended() -> None:
    timers = Timers()
    timers.add(1, "a")
    assert timers.ended(1, 5) == [(1, "a")]
    timers.add(1, "a")
    assert timers.ended(1, 5) == [(1, "a")]


def test_a_new_zookeeper_session_has_its_whole_budget_of_locks() -> None:
    budgets = SessionBudget()
    first = budgets.of(1)
    first.spend(1000)
    assert budgets.of(1).left == EPHEMERAL_CAP - 1000
    assert budgets.of(2).left == EPHEMERAL_CAP
    first.free(1000)  # a late release of the ended session
    assert budgets.of(2).left == EPHEMERAL_CAP


def test_the_true_time_is_within_the_bounds_of_a_single_late_reply(server: ServerClock, clock: ManualClock) -> None:
    sent = server.local()
    mtime = int(7_000_000 + clock.now * 1000)
    clock.now += 4
    server.observe(mtime, sent)
    assert server.now() == mtime  # early by the delay of the reply
    assert server.latest() == pytest.approx(mtime + 4000, abs=2)


async def test_the_time_that_is_shown_is_measured_every_ten_minutes_and_after_the_date_was_set(
    server: ServerClock, clock: ManualClock, leader: Leader
) -> None:
    for expected, passed, set_ahead in ((1, 0, 0), (1, 600, 0), (2, 601, 0), (3, 0, 7200)):
        clock.now += passed
        clock.slept += set_ahead
        assert await server.shown("/zms/.clients") == pytest.approx(7_000_000 + clock.now * 1000, abs=1)
        assert len(leader.asked) >= expected
        measured = len(leader.asked)
        assert await server.shown("/zms/.clients") == pytest.approx(7_000_000 + clock.now * 1000, abs=1)
        assert len(leader.asked) == measured
    assert set(leader.asked) == {"/zms/.clients/time"}


async def test_the_time_that_is_shown_to_a_user_without_rights_is_asked_for_once_a_minute(
    server: ServerClock, clock: ManualClock, leader: Leader
) -> None:
    leader.refuses = True
    for _ in range(50):
        assert await server.shown("/zms/.clients") == int(clock.time() * 1000)
        clock.now += 1
    assert len(leader.asked) == 1
    clock.now += TRUSTED
    leader.refuses = False
    assert await server.shown("/zms/.clients") == pytest.approx(7_000_000 + clock.now * 1000, abs=1)
