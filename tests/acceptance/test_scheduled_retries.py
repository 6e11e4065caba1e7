"""Scheduled retries: a handler chooses the time of redelivery, counted from the message's own date."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue import testing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


async def serve(
    queue: zq.Queue[bytes],
    session: zq.QueueSession,
    handler: Callable[[zq.Delivery[bytes]], Awaitable[None]],
    until: Any,
) -> None:
    """Run a listener until the condition holds."""
    async with session.listener(queue, handler), asyncio.timeout(30):
        while not await until():  # noqa: ASYNC110 -- no event reports it
            await asyncio.sleep(0.02)


async def test_the_nth_retry_is_due_at_its_offset_from_the_date_of_the_message(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    called_at: list[float] = []

    async def handler(_: zq.Delivery[bytes]) -> None:
        called_at.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.5)  # the time that the handler takes does not change the next date
        raise zq.Retry(schedule=[1, 2, 3])

    began = asyncio.get_running_loop().time()
    await jobs.put(b"x")
    await serve(jobs, session, handler, lambda: _holds(jobs.dead_letters.size))
    waited = [at - began for at in called_at]
    assert len(waited) == 4
    for after, due in zip(waited[1:], (1, 2, 3), strict=True):
        assert due - 0.1 < after < due + 10, waited
    [dead] = await jobs.dead_letters.peek()
    assert (dead.attempts, "scheduled retries" in dead.reason) == (4, True)


async def _holds(count: Callable[[], Awaitable[int]]) -> bool:
    return await count() > 0


async def test_a_retry_whose_date_has_passed_is_delivered_at_once(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    attempts: list[int] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        attempts.append(delivery.attempt)
        if delivery.attempt == 1:
            await asyncio.sleep(0.3)
            raise zq.Retry(schedule=[0.1, 3600])

    await jobs.put(b"x")
    await serve(jobs, session, handler, lambda: _empty(jobs))
    assert attempts == [1, 2]


async def _empty(queue: zq.Queue[bytes]) -> bool:
    return await queue.size() == 0


async def test_puts_of_the_exhausted_handler_are_committed_with_the_dead_letter(
    session: zq.QueueSession,
) -> None:
    jobs, alarms = session.queue("jobs"), session.queue("alarms")
    calls: list[int] = []

    async def give_up(delivery: zq.Delivery[bytes]) -> None:
        calls.append(delivery.attempt)
        if len(calls) == 1:
            raise OSError("the exhausted handler fails, so it is called again")
        delivery.put(alarms, b"gave up on " + delivery.value)

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        delivery.put("results", b"of a failure: forgotten")
        raise zq.Retry(schedule=[0], exhausted=give_up) from ValueError("bad")

    await jobs.configure(zq.QueueConfig(policy=zq.AtLeastOnce(backoff=zq.Fixed(0))))
    await jobs.put(b"x")
    await serve(jobs, session, handler, lambda: _holds(jobs.dead_letters.size))
    assert calls == [2, 3]
    assert [message.value for message in await alarms.peek()] == [b"gave up on x"]
    assert await session.queue("results").size() == 0
    [dead] = await jobs.dead_letters.peek()
    assert dead.reason.endswith("ValueError: bad")


async def test_a_retry_can_add_headers_for_the_next_attempt_and_the_dead_letter(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(3, backoff=zq.Fixed(0.05)))
    read: list[dict[str, str]] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        read.append(dict(delivery.headers))
        raise zq.Retry(headers={f"step{delivery.attempt}": "done"})

    message_id = await jobs.put(b"x", headers={"a": "1"})
    await serve(jobs, session, handler, lambda: _holds(jobs.dead_letters.size))
    assert read == [{"a": "1"}, {"a": "1", "step1": "done"}, {"a": "1", "step1": "done", "step2": "done"}]
    [dead] = await jobs.dead_letters.peek()
    assert (dead.id, dead.headers["step3"], dead.value) == (message_id, "done", b"x")


async def test_the_default_schedule_is_five_minutes_to_a_day() -> None:
    assert zq.RETRY_SCHEDULE == (300, 900, 3600, 6 * 3600, 24 * 3600)
    delivery = testing.delivery(b"x", attempt=2)

    async def handler(_: zq.Delivery[bytes]) -> None:
        raise zq.Retry(schedule=zq.RETRY_SCHEDULE)

    assert await testing.handle(handler, delivery) is zq.Outcome.ROLLED_BACK
    assert delivery.retry_delay is not None
    assert 890 < delivery.retry_delay <= 900


@pytest.mark.parametrize("wrong", [{"delay": 1, "schedule": [1]}, {"exhausted": print}])
def test_contradictory_retry_options_are_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(zq.InvalidOptionError):
        zq.Retry(**wrong)


@pytest.mark.parametrize("wrong", [{"schedule": [-1]}, {"headers": {"big": "x" * 40_000}}])
async def test_a_message_with_an_invalid_retry_is_still_redelivered(
    session: zq.QueueSession, wrong: dict[str, Any]
) -> None:
    jobs = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        if delivery.attempt == 1:
            raise zq.Retry(**wrong)

    await jobs.put(b"x")
    await serve(jobs, session, handler, lambda: _empty(jobs))
