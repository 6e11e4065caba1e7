"""An event is posted to the bus and to all groups, or to none."""

from __future__ import annotations

import asyncio
import gc
import weakref
from functools import partial
from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue.bus import Bus
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Event(BaseModel):
    """A text."""

    text: str


def play(program: Callable[[zq.QueueSession, zq.QueueSession], Awaitable[None]]) -> None:
    """Run a program with two sessions."""

    async def main() -> None:
        cluster = make_cluster(seed=0)
        cluster.ensemble.delays.network = partial(float, 0.001)
        async with cluster.connect() as session, cluster.connect() as other:
            await program(session, other)

    run_virtual(main)


def test_an_event_that_does_not_fit_in_a_transaction_is_not_part_of_it() -> None:
    async def program(session: zq.QueueSession, _: zq.QueueSession) -> None:
        bus = Bus(session, "orders", Event)
        await bus.join("audit")
        async with session.transaction() as tx:
            await bus.post(Event(text="x" * 300_000), tx=tx)
            with pytest.raises(zq.TransactionTooLargeError, match="orders@audit"):
                await bus.post(Event(text="y" * 300_000), tx=tx)
            await bus.post(Event(text="z"), tx=tx)
        assert await bus.queue().size() == await bus.queue("audit").size() == 2

    play(program)


def test_an_event_whose_key_a_group_has_in_the_transaction_is_not_part_of_it() -> None:
    async def program(session: zq.QueueSession, _: zq.QueueSession) -> None:
        bus = Bus(session, "orders", Event)
        await bus.join("audit")
        async with session.transaction() as tx:
            tx.put(bus.queue("audit"), b"", key="k", unique=True)
            with pytest.raises(zq.DuplicateKeyError, match="orders@audit"):
                await bus.post(Event(text="x"), tx=tx, key="k", unique=True)
            await bus.post(Event(text="z"), tx=tx, key="l", unique=True)
        assert (await bus.queue().size(), await bus.queue("audit").size()) == (1, 2)

    play(program)


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("tenths", range(-200, 0, 5))
def test_a_group_that_joined_gets_an_event_that_the_bus_itself_has_already(tenths: int, *, transactional: bool) -> None:
    """The group joins ``tenths`` of a millisecond before the post.

    The bus's own queue already holds the key of the event.
    """

    async def post(bus: Bus[Event], session: zq.QueueSession) -> None:
        if not transactional:
            await bus.post(Event(text="2"), key="k", unique="ignore")
            return
        while True:
            try:
                async with session.transaction() as tx:
                    await bus.post(Event(text="2"), tx=tx, key="k", unique="ignore")
            except zq.ConflictError:
                continue
            return

    async def program(session: zq.QueueSession, other: zq.QueueSession) -> None:
        bus, zookeeper = Bus(session, "orders", Event), core_of(session).zookeeper
        await bus.join("audit")
        [held, _] = await bus.post(Event(text="1"), key="k", unique="ignore")
        async with session.transaction() as tx:
            assert await tx.take(bus.queue("audit"), timeout=1)
        joins = asyncio.create_task(Bus(other, "orders", Event).join("billing"))
        await asyncio.sleep(-tenths / 10_000)
        await post(bus, session)
        await joins
        joined = (await zookeeper.read("/zms/.buses/orders")).stat.mzxid
        [name] = await zookeeper.children(f"/zms/{bus.queue('audit').name}/items")
        posted = (await zookeeper.read(f"/zms/{bus.queue('audit').name}/items/{name}")).stat.czxid
        assert await bus.queue("billing").size() == (joined < posted)
        assert [message.id for message in await bus.queue().peek(2)] == [held]

    play(program)


FULL = zq.QueueConfig(max_size=1)


async def join_and_fill(bus: Bus[Event]) -> None:
    """Make a group with a queue that one event fills."""
    await bus.join("audit")
    await bus.queue("audit").configure(FULL)
    await bus.post(Event(text="1"))


@pytest.mark.parametrize("timeout", [None, 600])
@pytest.mark.parametrize("after", range(40))
def test_a_post_that_waits_for_room_continues_without_a_group_that_leaves(after: int, timeout: float | None) -> None:
    """The group leaves ``after`` milliseconds after the post has begun, and another group joins."""

    async def program(session: zq.QueueSession, other: zq.QueueSession) -> None:
        bus, operator = Bus(session, "orders", Event), Bus(other, "orders", Event)
        await join_and_fill(operator)
        waiting = asyncio.create_task(bus.post(Event(text="2"), timeout=timeout))
        await asyncio.sleep(after / 1000)
        await operator.leave("audit")
        async with asyncio.timeout(60):
            assert len(await waiting) == 1
        assert (await bus.queue().size(), await bus.queue("audit").size()) == (2, 1)
        await operator.join("billing")
        assert len(await bus.post(Event(text="3"), timeout=timeout)) == 2

    play(program)


@pytest.mark.parametrize("posted", [False, True])
@pytest.mark.parametrize("timeout", [0, 20])
def test_the_full_queue_of_a_group_that_has_left_refuses_no_post(timeout: float, *, posted: bool) -> None:
    """The session has read the groups before, and does not know the limits of their queues."""

    async def program(session: zq.QueueSession, other: zq.QueueSession) -> None:
        bus, operator = Bus(session, "orders", Event), Bus(other, "orders", Event)
        await operator.join("audit")
        await (bus.post(Event(text="1")) if posted else bus.groups())
        await (operator.queue("audit").configure(FULL) if posted else join_and_fill(operator))
        await operator.leave("audit")
        began = asyncio.get_running_loop().time()
        assert len(await bus.post(Event(text="2"), timeout=timeout)) == 1
        assert asyncio.get_running_loop().time() - began < 1

    play(program)


@pytest.mark.parametrize("after", [*range(20), 5000])
def test_a_post_to_a_queue_that_was_not_known_to_be_full_continues_without_a_group_that_leaves(after: int) -> None:
    async def program(session: zq.QueueSession, other: zq.QueueSession) -> None:
        bus, operator = Bus(session, "orders", Event), Bus(other, "orders", Event)
        await operator.join("audit")
        await bus.post(Event(text="1"))
        await operator.queue("audit").configure(FULL)
        waiting = asyncio.create_task(bus.post(Event(text="2"), timeout=20))
        await asyncio.sleep(after / 1000)
        assert not waiting.done()
        await operator.leave("audit")
        async with asyncio.timeout(1):
            assert len(await waiting) == 1
        assert (await bus.queue().size(), await bus.queue("audit").size()) == (2, 1)

    play(program)


def test_a_post_that_waits_for_room_waits_again_after_another_group_has_joined() -> None:
    async def program(session: zq.QueueSession, other: zq.QueueSession) -> None:
        bus, operator = Bus(session, "orders", Event), Bus(other, "orders", Event)
        await join_and_fill(operator)
        waiting = asyncio.create_task(bus.post(Event(text="2"), timeout=None))
        limited = asyncio.create_task(bus.post(Event(text="late"), timeout=10))
        await asyncio.sleep(5)
        await operator.join("billing")
        with pytest.raises(zq.QueueFullError, match="10 s"):
            await limited
        assert not waiting.done()
        async with other.transaction() as tx:
            assert await tx.take(operator.queue("audit"), timeout=1)
        async with asyncio.timeout(60):
            assert len(await waiting) == 3
        assert [await bus.queue(group).size() for group in (None, "audit", "billing")] == [2, 1, 1]

    play(program)


def test_a_cancelled_post_that_waits_for_room_keeps_none() -> None:
    async def program(session: zq.QueueSession, other: zq.QueueSession) -> None:
        bus, operator = Bus(session, "orders", Event), Bus(other, "orders", Event)
        await join_and_fill(operator)
        waiting = asyncio.create_task(bus.post(Event(text="2"), timeout=None))
        await asyncio.sleep(5)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with other.transaction() as tx:
            assert await tx.take(operator.queue("audit"), timeout=1)
        async with asyncio.timeout(60):
            assert len(await bus.post(Event(text="3"), timeout=None)) == 2

    play(program)


def test_a_post_returns_the_ids_of_the_messages_that_have_its_key() -> None:
    async def program(session: zq.QueueSession, _: zq.QueueSession) -> None:
        bus = Bus(session, "orders", Event)
        await bus.join("audit")
        first = await bus.post(Event(text="1"), key="k", unique="ignore")
        assert await bus.post(Event(text="2"), key="k", unique="ignore") == first

    play(program)


def test_a_session_does_not_keep_the_buses_that_were_made_of_it(caplog: pytest.LogCaptureFixture) -> None:
    async def program(session: zq.QueueSession, other: zq.QueueSession) -> None:
        await Bus(other, "orders", Event, policy=zq.ConsumeTimes(2)).post(Event(text="0"))

        async def post() -> weakref.ref[Bus[Event]]:
            bus = Bus(session, "orders", Event, policy=zq.ConsumeTimes(3))
            await bus.post(Event(text="1"))
            return weakref.ref(bus)

        made = [await post() for _ in range(10)]
        gc.collect()
        assert not [bus for bus in made if bus() is not None]

    play(program)
    assert caplog.text.count("uses its stored policy") == 1
