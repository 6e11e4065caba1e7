"""The schedule of a `Retry` determines the number of deliveries, whatever the policy of the queue."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue.bus import Bus
from aiozkqueue.schedule import Notification, Notifications

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing import TestClock
    from tests.acceptance.conftest import OnClock
    from tests.integration.queue.conftest import Opener

pytestmark = pytest.mark.timeout(120)

SIX = len(zq.RETRY_SCHEDULE) + 1


class Event(BaseModel):
    number: int


class Calls:
    """Counts the calls of a handler that always asks for the schedule, and of its exhausted handler."""

    def __init__(self, clock: TestClock) -> None:
        self._clock = clock
        self.at: list[datetime] = []
        self.exhausted = 0

    async def __call__(self, *_: Any) -> None:
        self.at.append(datetime.fromtimestamp(self._clock.time(), UTC))
        raise zq.Retry(schedule=zq.RETRY_SCHEDULE, exhausted=self.give_up)

    async def give_up(self, delivery: zq.Delivery[Any]) -> None:
        self.exhausted += 1
        delivery.put("alarms", delivery.body)

    async def until_dead(self, queue: zq.Queue[Any]) -> None:
        """Move the clock to each retry in turn, until the message is a dead letter."""
        put_at = datetime.fromtimestamp(self._clock.time(), UTC)
        for number, wait in enumerate((*zq.RETRY_SCHEDULE, None), 1):
            async with asyncio.timeout(40):
                while len(self.at) < number or await queue.claimed():  # noqa: ASYNC110 -- no event reports it
                    await asyncio.sleep(0.02)
            if wait is not None:
                gone = datetime.fromtimestamp(self._clock.time(), UTC) - put_at
                self._clock.advance(timedelta(seconds=wait + 5) - gone)
        async with asyncio.timeout(40):
            while not await queue.dead_letters.size():  # noqa: ASYNC110 -- no event reports it
                await asyncio.sleep(0.02)


async def _died_of_the_schedule(calls: Calls, queue: zq.Queue[Any], alarms: zq.Queue[bytes]) -> None:
    [dead] = await queue.dead_letters.peek()
    assert (len(calls.at), calls.exhausted, dead.attempts) == (SIX, 1, SIX), dead.reason
    assert "scheduled retries" in dead.reason
    assert await alarms.size() == 1
    waits = [(later - calls.at[0]).total_seconds() for later in calls.at[1:]]
    for wait, due in zip(waits, zq.RETRY_SCHEDULE, strict=True):
        assert due - 1 < wait < due + 60, waits


@pytest.mark.parametrize(
    "policy",
    [
        zq.ConsumeTimes(1),
        zq.ConsumeTimes(4, backoff=zq.Fixed(0)),
        zq.ConsumeTimes(20),
        zq.ConsumeTimes(2, exhausted="drop"),
        zq.AtLeastOnce(),
    ],
    ids=repr,
)
async def test_the_schedule_of_a_plain_queue_is_followed_to_its_end_under_any_policy(
    on_clock: OnClock, clock: TestClock, policy: zq.Policy
) -> None:
    session, calls = await on_clock(), Calls(clock)
    jobs = session.queue("jobs", policy=policy)
    await jobs.put(b"x")
    async with session.listener(jobs, calls):
        await calls.until_dead(jobs)
    await _died_of_the_schedule(calls, jobs, session.queue("alarms"))


async def test_the_schedule_of_a_notification_queue_is_followed_to_its_end(on_clock: OnClock, clock: TestClock) -> None:
    session, calls = await on_clock(), Calls(clock)
    events = await Notifications(session).create("billing", "events", Event)
    await events.schedule(Event(number=1), datetime.fromtimestamp(clock.time(), UTC))

    async def handler(_: Notification[Event]) -> None:
        await calls()

    async with events.listener(handler):
        await calls.until_dead(events.queue)
    await _died_of_the_schedule(calls, events.queue, session.queue("alarms"))


async def test_the_schedule_of_a_bus_is_followed_to_its_end_although_another_subscriber_fails(
    on_clock: OnClock, clock: TestClock
) -> None:
    session, calls = await on_clock(), Calls(clock)
    bus = Bus(session, "events", Event)

    async def fails(_: Event) -> None:
        raise zq.Retry(delay=1)

    bus.subscribe(Event, fails)
    bus.subscribe(Event, calls, name="calls")
    await bus.post(Event(number=1))
    async with bus.listener():
        await calls.until_dead(bus.queue())
    await _died_of_the_schedule(calls, bus.queue(), session.queue("alarms"))


async def test_the_policy_bounds_crashes_in_a_scheduled_retry_and_the_schedule_continues(
    open_session: Opener, expire: Callable[[zq.QueueSession], Awaitable[None]]
) -> None:
    """The policy allows four deliveries in addition to the schedule: a message that kills each process ends as well."""
    session, watcher = await open_session(), await open_session()
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0)))
    attempts: list[int] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        attempts.append(delivery.attempt)
        if len(attempts) <= 2:
            raise zq.Retry(schedule=[0, 0, 0])
        await expire(session)
        await asyncio.sleep(0.2)

    await jobs.put(b"x")
    watched_jobs = watcher.queue("jobs")
    async with session.listener(jobs, handler), asyncio.timeout(60):
        while not await watched_jobs.dead_letters.size():  # noqa: ASYNC110 -- no event reports it
            await asyncio.sleep(0.05)
    [dead] = await watched_jobs.dead_letters.peek()
    assert attempts == [1, 2, 3, 4, 5]
    assert (dead.attempts, dead.reason.startswith("delivered 5 of 5 times")) == (5, True), dead.reason


async def test_other_errors_do_not_end_a_schedule_early(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0)))
    attempts: list[int] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt == 2:
            raise OSError("another error")
        raise zq.Retry(schedule=[0, 0, 0])

    await jobs.put(b"x")
    async with session.listener(jobs, handler), asyncio.timeout(30):
        while not await jobs.dead_letters.size():  # noqa: ASYNC110 -- no event reports it
            await asyncio.sleep(0.02)
    assert attempts == [1, 2, 3, 4]


async def test_a_failed_exhausted_handler_is_retried_under_a_counting_policy_too(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0)))
    calls: list[int] = []

    async def give_up(delivery: zq.Delivery[bytes]) -> None:
        calls.append(delivery.attempt)
        if len(calls) == 1:
            raise OSError("not now")
        delivery.put("alarms", b"x")

    async def handler(_: zq.Delivery[bytes]) -> None:
        raise zq.Retry(schedule=[0], exhausted=give_up)

    await jobs.put(b"x")
    async with session.listener(jobs, handler), asyncio.timeout(30):
        while not await jobs.dead_letters.size():  # noqa: ASYNC110 -- no event reports it
            await asyncio.sleep(0.02)
    assert (calls, await session.queue("alarms").size()) == ([2, 3], 1)


async def test_consume_once_calls_the_exhausted_handler_without_a_retry(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeOnce())
    calls: list[str] = []

    async def give_up(delivery: zq.Delivery[bytes]) -> None:
        calls.append("gave up")
        delivery.put("alarms", b"x")

    async def handler(_: zq.Delivery[bytes]) -> None:
        calls.append("called")
        raise zq.Retry(schedule=[0, 0], exhausted=give_up)

    await jobs.put(b"x")
    async with session.listener(jobs, handler), asyncio.timeout(30):
        while not await jobs.dead_letters.size():  # noqa: ASYNC110 -- no event reports it
            await asyncio.sleep(0.02)
    [dead] = await jobs.dead_letters.peek()
    assert (calls, "ConsumeOnce" in dead.reason, await session.queue("alarms").size()) == (
        ["called", "gave up"],
        True,
        1,
    )


@pytest.mark.parametrize(
    ("policy", "counted"), [(zq.AtLeastOnce(backoff=zq.Fixed(0)), 1), (zq.ConsumeTimes(9, backoff=zq.Fixed(0)), 3)]
)
async def test_a_crash_counts_under_consume_times_and_not_under_at_least_once(
    session: zq.QueueSession, expire: Callable[[zq.QueueSession], Awaitable[None]], policy: zq.Policy, counted: int
) -> None:
    jobs = session.queue("jobs", policy=policy)
    await jobs.put(b"x")
    for _ in range(2):
        async with session.transaction(autocommit=False) as tx:
            assert await tx.take(jobs, timeout=30) is not None
            await expire(session)
            with pytest.raises(zq.SessionExpiredError):
                await tx.commit()
    [peeked] = await jobs.peek()
    assert peeked.attempt == counted - 1
    async with session.transaction() as tx:
        message = await tx.take(jobs, timeout=30)
        assert message is not None
        assert message.attempt == counted
