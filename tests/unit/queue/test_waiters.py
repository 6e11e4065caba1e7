"""The waiters for claims on a queue."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from aiozkqueue.queue.claim.waiters import WaitQueue
from aiozkqueue.testing import TestClock

if TYPE_CHECKING:
    from aiozkqueue.queue.claim.waiters import Waiter
    from aiozkqueue.queue.state.claim import Claim


class StandingClock(TestClock):
    """A clock that only `advance` moves, so that no waiter becomes due while the test looks at them."""

    def monotonic(self) -> float:
        """Return the seconds by which it has been moved."""
        return self.moved


@pytest.fixture
async def waiters() -> WaitQueue:
    return WaitQueue("jobs", TestClock(), asyncio.Event())


def join(waiters: WaitQueue, limit: int) -> Waiter:
    return waiters.add(limit, None, None, None)


def bring(waiters: WaitQueue, flight: int, flying: set[int], count: int) -> None:
    """Have a batch end with these claims."""
    claims = cast("list[Claim]", [object() for _ in range(count)])
    assert waiters.assign(flight, flying, claims, 1, None, None) == []
    waiters.batch_landed(flight)


async def test_a_waiter_without_claims_under_way_is_extended_in_place(waiters: WaitQueue) -> None:
    first, other = join(waiters, 1), join(waiters, 1)
    assert waiters.extend(first, 2, 0)
    assert waiters.wanted(0) == 4
    bring(waiters, 1, {1}, 4)
    assert [len(first.future.result()), len(other.future.result())] == [3, 1]


async def test_a_waiter_with_claims_under_way_is_not_extended(
    waiters: WaitQueue,
) -> None:
    first, second = join(waiters, 2), join(waiters, 2)
    assert not waiters.extend(first, 1, promised=1)
    assert not waiters.extend(second, 1, promised=3)
    assert waiters.extend(second, 1, promised=2)
    bring(waiters, 1, {1, 2}, 2)
    assert first.over


async def test_a_waiter_that_has_claims_or_its_answer_is_not_extended(waiters: WaitQueue) -> None:
    first = join(waiters, 2)
    bring(waiters, 1, {1, 2}, 1)
    assert not waiters.extend(first, 1, 0)
    waiters.batch_landed(2)
    assert first.over
    assert not waiters.extend(first, 1, 0)


async def move(clock: TestClock, seconds: float) -> None:
    """Let this much time pass, and run what is due."""
    clock.advance(seconds)
    for _ in range(10):
        await asyncio.sleep(0)


async def test_each_waiter_times_out_at_its_own_deadline() -> None:
    clock = TestClock()
    waiters = WaitQueue("jobs", clock, asyncio.Event())
    patient = waiters.add(1, None, None, None)
    late, early = waiters.add(1, 30, None, None), waiters.add(1, 10, None, None)
    await move(clock, 10)
    assert early.future.result() == []
    between = waiters.add(1, 15, None, None)
    await move(clock, 14)
    assert not between.over
    await move(clock, 1)
    assert between.future.result() == []
    assert not late.over
    await move(clock, 5)
    assert late.future.result() == []
    assert not patient.over


@pytest.mark.parametrize("seed", range(20))
async def test_deadlines_and_wanted_claims_match_a_scan_of_all_waiters(seed: int) -> None:
    clock, random = StandingClock(), Random(seed)
    waiters = WaitQueue("jobs", clock, asyncio.Event())
    came: list[Waiter] = []
    for flight in range(100):
        for _ in range(random.randrange(4)):
            came += [waiters.add(random.choice((1, 1, 1, 5)), random.choice((None, 0.5, 2, 20)), None, None)]
        if random.random() < 0.7:
            claims = cast("list[Claim]", [SimpleNamespace(generation=1) for _ in range(random.randrange(6))])
            waiters.assign(flight, {flight, flight + 1}, claims, 1, None, None)
            waiters.batch_landed(flight)
        served = {waiter for waiter in came if waiter.over}
        await move(clock, random.choice((0.1, 0.6, 3)))
        now = clock.monotonic()
        assert [waiter.over for waiter in came] == [waiter in served or waiter.due <= now for waiter in came]
        waiting, promised = [waiter for waiter in came if not waiter.over], random.randrange(8)
        missing = sum(waiter.limit - waiter.count for waiter in waiting) - promised
        wanted = min(missing, sum(waiter.limit for waiter in waiting if not waiter.count))
        assert max(waiters.wanted(promised), 0) == max(wanted, 0)
        assert waiters.empty == (not waiting)


async def test_a_waiter_gets_no_claims_of_two_zookeeper_sessions(waiters: WaitQueue) -> None:
    """One commit could not end them together."""
    waiter = join(waiters, 3)
    old, new = (cast("list[Claim]", [SimpleNamespace(generation=generation)]) for generation in (1, 2))
    assert waiters.assign(1, {1, 2}, old, 1, None, None) == []
    assert waiters.assign(2, {2}, new, 2, None, None) == new
    assert waiter.future.result() == old
