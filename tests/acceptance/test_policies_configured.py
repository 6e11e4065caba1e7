"""A policy that is configured while processes run applies to all of them, and none of them fails."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue.bus import Bus
from aiozkqueue.errors import AlreadyExistsError, ConfigConflictError
from aiozkqueue.schedule import Notification, Notifications

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.queue.conftest import Opener

pytestmark = pytest.mark.timeout(90)

NEW = zq.ConsumeTimes(2, backoff=zq.Fixed(0.01))


class Event(BaseModel):
    number: int


class Failing:
    """A subscriber that always fails."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, _: object) -> None:
        self.calls += 1
        raise OSError("not now")


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110 -- no event reports it
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("named", [None, zq.ConsumeTimes(4, backoff=zq.Fixed(0)), zq.AtLeastOnce()], ids=repr)
@pytest.mark.parametrize("used", ["posted before", "never used before"])
async def test_a_running_bus_continues_and_follows_a_newly_configured_policy(
    session: zq.QueueSession, other: zq.QueueSession, named: zq.Policy | None, used: str
) -> None:
    bus, fails = Bus(session, "orders", Event, policy=named), Failing()
    bus.subscribe(Event, fails, name="fails")
    if used == "posted before":
        async with bus.listener():
            await bus.post(Event(number=0))
            await until(lambda: _called(fails))
        await bus.queue().purge()
        await bus.queue().dead_letters.purge()
        fails.calls = 0
    await other.queue("orders").configure(zq.QueueConfig(policy=NEW))
    await bus.post(Event(number=1))
    async with session.transaction() as tx:
        await bus.post(Event(number=2), tx=tx)
    other_bus = Bus(other, "orders", Event, policy=named)
    other_bus.subscribe(Event, fails, name="fails")
    async with bus.listener(), other_bus.listener():
        await bus.post(Event(number=3))
        await until(lambda: _count(bus.queue(), 3))
    assert fails.calls <= 6
    assert {letter.attempts for letter in await bus.queue().dead_letters.peek()} == {2}
    assert (await bus.queue().configuration()).policy == NEW


async def _called(fails: Failing) -> bool:
    return fails.calls > 0


async def _count(queue: zq.Queue[Any], wanted: int) -> bool:
    return await queue.dead_letters.size() == wanted


async def test_a_post_stores_no_policy_and_a_listener_stores_its_own(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    await Bus(session, "orders", Event).post(Event(number=1))
    assert (await other.queue("orders").configuration()).policy is None
    bus, fails = Bus(other, "orders", Event, policy=NEW), Failing()
    bus.subscribe(Event, fails, name="fails")
    async with bus.listener():
        await until(lambda: _count(bus.queue(), 1))
    assert fails.calls == 2
    await Bus(session, "orders", Event).post(Event(number=2))
    assert (await session.queue("orders").configuration()).policy == NEW


async def test_a_bus_without_a_policy_gets_the_default_one_from_its_first_listener(session: zq.QueueSession) -> None:
    bus, fails = Bus(session, "orders", Event), Failing()
    bus.subscribe(Event, fails, name="fails")
    await bus.post(Event(number=1))
    async with bus.listener():
        await until(lambda: _count(bus.queue(), 1))
    assert fails.calls == 4


async def test_a_bus_with_another_policy_than_the_stored_one_warns_once(
    session: zq.QueueSession, other: zq.QueueSession, caplog: pytest.LogCaptureFixture
) -> None:
    await session.queue("orders", policy=NEW).put(b"{}")
    bus = Bus(other, "orders", Event, policy=zq.ConsumeTimes(9))
    with caplog.at_level(logging.WARNING, "aiozkqueue.bus"):
        for number in range(3):
            await bus.post(Event(number=number))
        await session.queue("orders").configure(zq.QueueConfig(clean_every=100))
        await bus.post(Event(number=4))
    [warning] = [record.getMessage() for record in caplog.records if "policy" in record.getMessage()]
    assert "ConsumeTimes(2" in warning
    assert "ConsumeTimes(9" in warning


async def test_a_process_can_still_name_the_old_policy_of_a_queue_that_was_configured_meanwhile(
    session: zq.QueueSession, other: zq.QueueSession, open_session: Opener
) -> None:
    """Code may name the policy wherever it uses the queue; only a process that starts later gets the conflict."""
    old = zq.ConsumeTimes(5)
    for opened in (session, other):
        await opened.queue("jobs", policy=old).put(b"before")
    await other.queue("jobs").configure(zq.QueueConfig(policy=NEW))
    for opened in (session, other):
        await opened.queue("jobs", policy=old).put(b"after")
        await opened.queue("jobs", policy=old).put(b"once more")
        async with opened.queue("jobs", policy=old).consume(policy=old, until_idle=0) as deliveries:
            async for delivery in deliveries:
                await delivery.commit()
    with pytest.raises(ConfigConflictError, match="leave the policy out"):
        await (await open_session()).queue("jobs", policy=old).put(b"new")


async def test_a_notification_queues_policy_can_be_configured_and_creating_it_again_changes_nothing(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    events = await Notifications(session).create("billing", "events", Event)
    other_events = await Notifications(other).get("billing", "events", Event)
    await other_events.queue.configure(zq.QueueConfig(policy=NEW, history=zq.History(lifetime=60)))
    for opened in (session, other):
        with pytest.raises(AlreadyExistsError):
            await Notifications(opened).create("billing", "events", Event, policy=zq.AtLeastOnce(), history=False)
    stored = await other_events.queue.configuration()
    assert (stored.policy, stored.history) == (NEW, zq.History(lifetime=60))
    await events.schedule(Event(number=1), datetime.now(UTC))
    fails = Failing()

    async def handler(_: Notification[Event]) -> None:
        await fails(None)

    async with events.listener(handler):
        await until(lambda: _count(events.queue, 1))
    assert fails.calls == 2


async def test_one_of_several_concurrent_creates_of_a_notification_queue_succeeds_and_its_settings_apply(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    policies = [zq.ConsumeTimes(times) for times in (2, 3, 4, 5)]
    made = await asyncio.gather(
        *(
            Notifications(opened).create("billing", "events", Event, policy=policy)
            for opened, policy in zip((session, other, session, other), policies, strict=True)
        ),
        return_exceptions=True,
    )
    [winner] = [policy for policy, result in zip(policies, made, strict=True) if not isinstance(result, BaseException)]
    assert (await session.queue("billing:events").configuration()).policy == winner
