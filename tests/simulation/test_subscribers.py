"""The record of finished subscribers is stored at each end of an attempt, and never prevents this end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue.bus import Bus
from aiozkqueue.testing import run_virtual, simulated

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest

#: A header so large that a message has little room for further headers.
LONG = {"long": "x" * 32_720}


class Event(BaseModel):
    """An event without contents."""


def subscribed(session: zq.QueueSession, calls: list[str], second: Callable[[Event], Awaitable[None]]) -> Bus[Event]:
    """Return a bus with a subscriber that succeeds, and this second one."""
    bus = Bus(session, "orders", Event)

    async def first(_: Event) -> None:
        calls.append("first")

    bus.subscribe(Event, first)
    bus.subscribe(Event, second, name="second")
    return bus


def played(program: Callable[[zq.QueueSession], Awaitable[Any]]) -> Any:
    """Run a program with one session, and return its result."""

    async def main() -> Any:
        async with simulated() as cluster, cluster.connect() as session:
            return await program(session)

    return run_virtual(main)


def test_a_redriven_event_keeps_the_finished_subscribers_of_the_attempt_that_used_up_its_schedule() -> None:
    async def program(session: zq.QueueSession) -> list[str]:
        calls: list[str] = []

        async def fail_once(_: Event) -> None:
            calls.append("second")
            if calls.count("second") == 1:
                raise zq.Retry(schedule=[])

        bus = subscribed(session, calls, fail_once)
        await bus.post(Event())
        async with bus.listener():
            await asyncio.sleep(5)
            assert await bus.queue().dead_letters.redrive() == 1
            await asyncio.sleep(5)
        return calls

    assert played(program) == ["first", "second", "second"]


def test_an_event_whose_function_for_used_up_retries_fails_keeps_the_finished_subscribers() -> None:
    async def program(session: zq.QueueSession) -> list[str]:
        calls: list[str] = []

        async def exhausted(_: zq.Delivery[bytes]) -> None:
            raise OSError

        async def fail_once(_: Event) -> None:
            calls.append("second")
            if calls.count("second") == 1:
                raise zq.Retry(schedule=[], exhausted=exhausted)

        bus = subscribed(session, calls, fail_once)
        await bus.post(Event())
        async with bus.listener():
            await asyncio.sleep(5)
        return calls

    assert played(program) == ["first", "second", "second"]


def test_an_event_without_room_for_the_finished_subscribers_is_released_when_its_listener_is_aborted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def program(session: zq.QueueSession) -> tuple[int, int]:
        async def hang(_: Event) -> None:
            await asyncio.Event().wait()

        bus = subscribed(session, [], hang)
        await bus.post(Event(), headers=LONG)
        async with bus.listener(drain_timeout=0):
            await asyncio.sleep(1)
        stats = await bus.queue().stats()
        return stats.size, stats.in_flight

    assert played(program) == (1, 0)
    assert "is released without the headers bus-done: headers, key and group take" in caplog.text


def test_an_event_without_room_for_the_finished_subscribers_is_retried_when_a_subscriber_asks_for_it() -> None:
    async def program(session: zq.QueueSession) -> list[int]:
        times: list[int] = []

        async def fail_once(_: Event) -> None:
            times.append(round(asyncio.get_running_loop().time()))
            if len(times) == 1:
                raise zq.Retry(delay=60)

        bus = subscribed(session, [], fail_once)
        await bus.post(Event(), headers=LONG)
        async with bus.listener():
            await asyncio.sleep(90)
        return [time - times[0] for time in times]

    assert played(program) == [0, 60]
