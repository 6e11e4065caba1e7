"""Strict FIFO: ``QueueConfig(ordered=True)``. One message at a time, in put order, for any producers and consumers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import ConfigConflictError
from tests.integration.queue.conftest import Opener, eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.integration.queue.conftest import Locks
    from tests.observer import Observer

    Expire = Callable[[zq.QueueSession], Awaitable[None]]

pytestmark = pytest.mark.timeout(120)


async def test_messages_are_delivered_in_put_order_through_retries_and_lost_sessions(
    session: zq.QueueSession, open_session: Opener, expire: Expire, server_view: Observer, queue_root: str
) -> None:
    queue = session.queue("jobs")
    await queue.configure(zq.QueueConfig(ordered=True))
    await queue.put_many([b"%d" % number for number in range(30)])
    # Messages of other programs are part of the order.
    await server_view.create(f"{queue_root}/jobs/items/item-0000000030", b"30")
    finished: list[int] = []
    out: list[int] = []
    lost = await open_session()

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        number = int(delivery.value)
        out.append(number)
        try:
            assert len(out) == 1, f"{out} were in flight at once"
            await asyncio.sleep(0.002)
            if number % 10 == 3 and delivery.attempt < 3:
                raise zq.Retry(delay=0.1)
        finally:
            out.remove(number)
        finished.append(number)

    async def done() -> bool:
        return finished[-1:] == [30]

    held = await lost.transaction(autocommit=False).__aenter__()
    assert [message.value for message in await held.take_many(lost.queue("jobs"), 3)] == [b"0", b"1", b"2"]
    sessions = [session, await open_session()]
    listeners = [opened.listener(opened.queue("jobs"), handler, concurrency=5) for opened in sessions]
    async with listeners[0], listeners[1]:
        await expire(lost)
        await eventually(done, 60)
    assert finished == list(range(31))
    assert await queue.size() == 0
    await held.rollback()


async def test_a_queue_becomes_ordered_only_after_its_earlier_claims_end(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    queue = session.queue("jobs")
    await queue.put_many([b"0", b"1", b"2"])
    async with other.transaction() as before:
        first = await before.take(other.queue("jobs"))
        assert first is not None
        assert first.value == b"0"
        await queue.configure(zq.QueueConfig(ordered=True))
        async with session.transaction() as tx:
            assert await tx.take(queue, timeout=0.3) is None
    async with session.transaction() as tx:
        second = await tx.take(queue, timeout=30)
        assert second is not None
        assert second.value == b"1"
        await queue.configure(zq.QueueConfig(ordered=False))
        async with other.transaction() as after:
            assert await after.take(other.queue("jobs"), timeout=0.3) is None
    async with other.transaction() as after:
        third = await after.take(other.queue("jobs"), timeout=20)
        assert third is not None
        assert third.value == b"2"


async def lease_before_another_order(queue: zq.Queue[bytes], before: str) -> zq.Lease[bytes]:
    """Lease the first of two messages, and then change the order of the queue."""
    await queue.configure(zq.QueueConfig(ordered=True if before == "ordered" else None))
    for value in (b"0", b"1"):
        await queue.put(value, group="g" if before == "grouped" else None)
    (lease,) = await queue.leases.take(lifetime=3600, timeout=30)
    await queue.configure(zq.QueueConfig(ordered=before != "ordered"))
    return lease


@pytest.mark.parametrize("before", ["unordered", "grouped", "ordered"])
@pytest.mark.parametrize("end", ["acknowledge", "release", "renew to 0"])
async def test_a_lease_that_is_older_than_the_order_of_its_queue_ends_as_any_other(
    session: zq.QueueSession, locks: Locks, server_view: Observer, queue_root: str, before: str, end: str
) -> None:
    queue = session.queue("jobs")
    lease = await lease_before_another_order(queue, before)
    if end == "acknowledge":
        await queue.leases.acknowledge([lease.token])
    elif end == "release":
        await queue.leases.release([lease])
    else:
        await queue.leases.renew([lease.token], lifetime=0)
    assert (await locks(), await server_view.children(f"{queue_root}/jobs/due")) == ([], [])
    async with session.transaction() as tx:
        taken = await tx.take(queue, timeout=30)
        assert taken is not None
        assert taken.value == (b"1" if end == "acknowledge" else b"0")


@pytest.mark.parametrize("before", ["unordered", "grouped", "ordered"])
async def test_a_lease_that_is_older_than_the_order_of_its_queue_still_holds_its_message(
    session: zq.QueueSession, locks: Locks, before: str
) -> None:
    queue = session.queue("jobs")
    lease = await lease_before_another_order(queue, before)
    await queue.leases.renew([lease.token], lifetime=7200)
    assert len(await locks()) == 1
    assert await queue.cancel(id=lease.id) is zq.Alteration.HELD
    assert await queue.update(b"new", id=lease.id) is zq.Alteration.HELD
    async with session.transaction() as tx:
        assert await tx.take(queue, timeout=0.3) is None
    await queue.leases.acknowledge([lease.token])
    assert [message.value for message in await queue.peek()] == [b"1"]


@pytest.mark.parametrize("before", ["unordered", "grouped", "ordered"])
async def test_a_lease_that_is_older_than_the_order_of_its_queue_is_shown_as_held(
    session: zq.QueueSession, before: str
) -> None:
    queue = session.queue("jobs")
    lease = await lease_before_another_order(queue, before)
    state = await queue.state(lease.id)
    first, second = await queue.peek()
    assert state.status is zq.Status.DELAYED
    assert state.due is not None
    assert (first.id, first.due) == (lease.id, state.due)
    assert second.due is None
    assert (await queue.state(second.id)).status is zq.Status.WAITING
    stats = await queue.stats()
    assert (stats.waiting, stats.retrying, stats.oldest) == (1, 1, second.enqueued_at)


async def test_a_peek_shows_an_end_only_for_the_leased_message_of_an_ordered_queue(session: zq.QueueSession) -> None:
    queue = session.queue("jobs")
    await queue.configure(zq.QueueConfig(ordered=True))
    await queue.put_many([b"0", b"1"])
    await queue.leases.take(lifetime=3600, timeout=30)
    first, second = await queue.peek()
    assert first.due is not None
    assert second.due is None


@pytest.mark.parametrize("before", ["unordered", "grouped", "ordered"])
async def test_a_message_that_was_taken_before_the_order_of_its_queue_changed_is_held(
    session: zq.QueueSession, other: zq.QueueSession, before: str
) -> None:
    queue = session.queue("jobs")
    await queue.configure(zq.QueueConfig(ordered=True if before == "ordered" else None))
    for value in (b"0", b"1"):
        await queue.put(value, group="g" if before == "grouped" else None)
    async with other.transaction() as tx:
        taken = await tx.take(other.queue("jobs"), timeout=30)
        assert taken is not None
        await queue.configure(zq.QueueConfig(ordered=before != "ordered"))
        state = await queue.state(taken.id)
        assert state.status is zq.Status.IN_FLIGHT
        second = (await queue.peek())[1]
        assert (await queue.state(second.id)).status is zq.Status.WAITING
        stats = await queue.stats()
        assert (stats.waiting, stats.in_flight, stats.oldest) == (1, 1, second.enqueued_at)
        (consumer,) = [found for found in await queue.admin.consumers() if found.messages]
        assert list(consumer.messages) == [taken.id]
        assert await queue.cancel(id=taken.id) is zq.Alteration.HELD
        assert await queue.update(b"new", id=taken.id) is zq.Alteration.HELD
    assert [message.value for message in await queue.peek()] == [b"1"]


@pytest.mark.parametrize("before", ["unordered", "grouped", "ordered"])
async def test_a_message_that_is_held_since_another_order_is_not_altered(
    session: zq.QueueSession, other: zq.QueueSession, before: str
) -> None:
    queue, group = session.queue("jobs"), "g" if before == "grouped" else None
    await queue.configure(zq.QueueConfig(ordered=True if before == "ordered" else None))
    await queue.put(b"0", group=group, key="k")
    await queue.put(b"1", group=group)
    async with other.transaction() as tx:
        held = await tx.take(other.queue("jobs"), timeout=30)
        assert held is not None
        await queue.configure(zq.QueueConfig(ordered=before != "ordered"))
        assert await queue.cancel(id=held.id) is zq.Alteration.HELD
        assert await queue.update(b"new", key="k") is zq.Alteration.HELD
        await queue.purge()
        assert (await queue.peek(1))[0].id == held.id
    assert (await queue.state(held.id)).status is zq.Status.UNKNOWN


@pytest.mark.parametrize("before", ["unordered", "grouped", "ordered"])
async def test_a_message_that_is_held_or_delayed_since_another_order_is_shown_so(
    session: zq.QueueSession, before: str
) -> None:
    queue = session.queue("jobs")
    await queue.configure(zq.QueueConfig(ordered=True if before == "ordered" else None))
    ids = [await queue.put(value, group="g" if before == "grouped" else None) for value in (b"0", b"1")]
    async with session.transaction(autocommit=False) as tx:
        await tx.take(queue, timeout=30)
        await queue.configure(zq.QueueConfig(ordered=before != "ordered"))
        states = [(await queue.state(message_id)).status for message_id in ids]
        assert states == [zq.Status.IN_FLIGHT, zq.Status.WAITING]
        (consumer,) = await queue.admin.consumers()
        assert consumer.messages == (ids[0],)
        await tx.rollback(delay=3600)
    states = [(await queue.state(message_id)).status for message_id in ids]
    assert states == [zq.Status.DELAYED, zq.Status.WAITING]
    assert [message.due is not None for message in await queue.peek()] == [True, False]


@pytest.mark.parametrize("group", [None, "g"])
async def test_only_the_message_that_waits_for_its_retry_is_shown_as_delayed(
    session: zq.QueueSession, group: str | None
) -> None:
    queue = session.queue("jobs")
    await queue.configure(zq.QueueConfig(ordered=True))
    ids = [await queue.put(value, group=group) for value in (b"0", b"1", b"2")]
    async with session.transaction(autocommit=False) as tx:
        await tx.take(queue, timeout=30)
        await tx.rollback(delay=3600)
    shown = [(message.value, message.due is not None) for message in await queue.peek()]
    assert shown == [(b"0", True), (b"1", False), (b"2", False)]
    states = [(await queue.state(message_id)).status for message_id in ids]
    assert states == [zq.Status.DELAYED, zq.Status.WAITING, zq.Status.WAITING]
    stats = await queue.stats()
    assert (stats.waiting, stats.retrying) == (2, 1)


async def test_an_ordered_queue_refuses_shards_priorities_and_delays(session: zq.QueueSession) -> None:
    with pytest.raises(zq.InvalidOptionError, match="shards"):
        zq.QueueConfig(ordered=True, shards=2)
    with pytest.raises(zq.InvalidOptionError, match="ordered"):
        zq.QueueConfig(ordered="yes")  # type: ignore[arg-type]
    ordered = session.queue("ordered")
    await ordered.configure(zq.QueueConfig(ordered=True))
    with pytest.raises(ConfigConflictError, match="shards"):
        await ordered.configure(zq.QueueConfig(shards=4))
    for options in ({"priority": 1}, {"delay": 1}):
        with pytest.raises(zq.InvalidOptionError, match="ordered"):
            await ordered.put(b"1", **options)  # type: ignore[arg-type]
        with pytest.raises(zq.InvalidOptionError, match="ordered"):
            async with session.transaction() as tx:
                tx.put(ordered, b"1", **options)  # type: ignore[call-overload]
    assert await ordered.size() == 0
    urgent = session.queue("urgent")
    await urgent.put(b"1", priority=-1)
    with pytest.raises(ConfigConflictError, match="priority"):
        await urgent.configure(zq.QueueConfig(ordered=True))
