"""Rates: several sessions together call their handlers no more often than allowed, and waiting calls lock nothing."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import InvalidNameError
from aiozkqueue.layout.rates import RateRecord
from aiozkqueue.rates.pace import USABLE_FOR
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import assert_empty
from tests.integration.queue.conftest import eventually
from tests.simulation.test_rates import allowed, most_in_a_second

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing import TestClock
    from tests.acceptance.conftest import OnClock
    from tests.observer import Observer

    Expire = Callable[[zq.QueueSession], Awaitable[None]]

RATE = 20


class Handled:
    """The times at which the calls of a handler began."""

    def __init__(self) -> None:
        self.begun: list[float] = []

    async def __call__(self, _: zq.Delivery[bytes]) -> None:
        self.begun.append(time.monotonic())


class RoundTrips:
    """The longest round trip of a multi of these sessions: a lease of the rate, or an attempt record."""

    def __init__(self, patch: pytest.MonkeyPatch, *sessions: zq.QueueSession) -> None:
        self.longest = 0.0
        for session in sessions:
            client = core_of(session).zookeeper
            patch.setattr(client, "multi", partial(self._timed, client.multi))

    def _timed(self, multi: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any) -> asyncio.Future[Any]:
        sent = time.monotonic()
        reply = asyncio.ensure_future(multi(*arguments, **options))
        reply.add_done_callback(lambda _: self._note(time.monotonic() - sent))
        return reply

    def _note(self, took: float) -> None:
        self.longest = max(self.longest, took)


async def test_several_sessions_share_a_rate(
    session: zq.QueueSession,
    other: zq.QueueSession,
    server_view: Observer,
    queue_root: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    round_trips = RoundTrips(monkeypatch, session, other)
    jobs, handled = session.queue("jobs"), Handled()
    await jobs.put_many([b"job"] * 60)
    first = session.listener(jobs, handled, concurrency=8, rate=RATE)
    second = other.listener(other.queue("jobs"), handled, concurrency=8, rate=RATE)
    async with first, second:
        await assert_empty(jobs, timeout=60)
    assert len(handled.begun) == 60
    assert most_in_a_second(handled.begun) <= allowed(RATE) + RATE * round_trips.longest
    assert max(handled.begun) - min(handled.begun) >= 59 / RATE - USABLE_FOR
    record = RateRecord.decode((await server_view.tree(f"{queue_root}/.rates"))[f"{queue_root}/.rates/jobs"])
    assert record.length > 0


async def test_a_message_waits_unlocked_while_others_have_used_the_rate(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs, more, handled = other.queue("jobs"), other.queue("more"), Handled()
    async with (
        session.listener(session.queue("jobs"), handled, rate=0.001),
        session.listener(session.queue("more"), handled, rate=0.001, rate_name="jobs"),
        asyncio.timeout(60),
    ):
        await jobs.put(b"1")
        await assert_empty(jobs, timeout=30)
        await more.put(b"2")
        async with other.transaction() as tx:
            taken = await tx.take(more, timeout=30)
            assert taken is not None
            assert (taken.value, taken.attempt) == (b"2", 1)
    assert len(handled.begun) == 1


async def test_a_rate_outlives_the_session_that_used_it(
    session: zq.QueueSession, expire: Expire, monkeypatch: pytest.MonkeyPatch
) -> None:
    round_trips = RoundTrips(monkeypatch, session)
    jobs, handled = session.queue("jobs"), Handled()
    await jobs.put_many([b"job"] * 40)
    async with session.listener(jobs, handled, concurrency=8, rate=RATE):
        while len(handled.begun) < 10:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.02)
        await expire(session)
        await assert_empty(jobs, timeout=60)
    assert most_in_a_second(handled.begun) <= allowed(RATE) + RATE * round_trips.longest


async def test_rates_out_of_range_are_refused(session: zq.QueueSession) -> None:
    for options, remedy in (
        ({"rate": 0}, "rate=0: give the calls in a second"),
        ({"rate": True}, "rate=True"),
        ({"per_process_rate": float("inf")}, "per_process_rate=inf"),
        ({"rate_name": "bank"}, "give rate= too"),
        ({"rate": 1, "rate_name": "a/b"}, "a/b"),
    ):
        bad_options: Any = options
        with pytest.raises((zq.InvalidOptionError, InvalidNameError), match=remedy):
            session.listener(session.queue("jobs"), Handled(), **bad_options)


@pytest.mark.parametrize("limit", ["rate", "per_process_rate"])
async def test_a_call_whose_slot_has_passed_on_a_moved_clock_begins_at_once(
    on_clock: OnClock, clock: TestClock, limit: Any
) -> None:
    session = await on_clock()
    jobs = session.queue("jobs")
    await jobs.put_many([b"%d" % number for number in range(4)])
    handled = Handled()

    async def called(number: int) -> bool:
        return len(handled.begun) == number and not await jobs.claimed()

    limits: dict[str, Any] = {limit: 0.01}
    async with session.listener(jobs, handled, **limits):
        for number in range(1, 5):
            await eventually(partial(called, number))
            if number < 4:
                clock.advance(50)
                await asyncio.sleep(0.6)
                assert len(handled.begun) == number
                clock.advance(100)  # 50 s behind its slot
