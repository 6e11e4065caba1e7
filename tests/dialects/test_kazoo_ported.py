"""The behaviour in kazoo's own tests of its queues, on queues that it shares with us; see README.md."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import TransactionClosedError

from .peers import PATIENCE
from .test_kazoo import awaited, drained

if TYPE_CHECKING:
    from .peers import Kazoo

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=[True, False], ids=["LockingQueue", "Queue"])
def locking(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def place(path: str, *, locking: bool) -> str:
    """The path of the queue, whose name tells the peer its kind."""
    return f"{path}-locking" if locking else path


@pytest.mark.parametrize(
    ("value", "options"),
    [
        ({}, {}),
        ("text", {}),
        (b"one", {"priority": b"100"}),
        (b"one", {"priority": 10.0}),
        (b"one", {"priority": True}),
    ],
)
async def test_an_invalid_message_or_priority_is_refused_and_not_put(
    session: zq.QueueSession, place: str, value: Any, options: Any, *, locking: bool
) -> None:
    queue = session.kazoo_queue(place, locking=locking)
    with pytest.raises((zq.PayloadError, zq.InvalidOptionError)):
        await queue.put(value, **options)
    with pytest.raises((zq.PayloadError, zq.InvalidOptionError)):
        async with session.transaction() as tx:
            tx.put(queue, b"in the same transaction")
            tx.put(queue, value, **options)
    assert await queue.size() == 0


@pytest.mark.parametrize("priority", [-100, -1, 1000, 100000])
async def test_a_priority_of_other_than_three_digits_is_refused(
    session: zq.QueueSession, place: str, priority: int, *, locking: bool
) -> None:
    queue = session.kazoo_queue(place, locking=locking)
    with pytest.raises(zq.InvalidOptionError, match="from 0, the most urgent, to 999"):
        await queue.put(b"one", priority=priority)
    assert await queue.size() == 0


async def test_an_empty_queue_has_length_zero_and_returns_nothing(
    session: zq.QueueSession, kazoo: Kazoo, place: str, *, locking: bool
) -> None:
    queue = session.kazoo_queue(place, locking=locking)
    assert (await queue.size(), await kazoo.ask("len", place)) == (0, 0)
    assert await kazoo.get(place, *([0] if locking else [])) is None
    async with session.transaction() as tx:
        assert await tx.take(queue) is None
    assert (await queue.size(), await kazoo.ask("len", place)) == (0, 0)


async def test_both_sides_count_each_others_messages_and_take_them_in_order(
    session: zq.QueueSession, kazoo: Kazoo, place: str, *, locking: bool
) -> None:
    queue = session.kazoo_queue(place, locking=locking)
    await kazoo.ask("put", place, b"one".hex(), 100)
    async with session.transaction() as tx:
        tx.put(queue, b"two")
        tx.put(queue, b"three")
    assert await kazoo.ask("len", place) == await queue.size() == 3
    assert await awaited(session, queue, 1) == [b"one"]
    assert await kazoo.get(place, *([PATIENCE] if locking else [])) == b"two"
    if locking:
        assert await kazoo.ask("consume", place)
    assert await drained(session, queue) == [b"three"]
    assert await kazoo.ask("len", place) == 0


async def test_the_most_urgent_message_comes_first_and_the_oldest_of_equal_priority(
    session: zq.QueueSession, kazoo: Kazoo, place: str, *, locking: bool
) -> None:
    queue = session.kazoo_queue(place, locking=locking)
    puts = [(b"four", 101), (b"one", 0), (b"two", 0), (b"three", 10), (b"five", 999)]
    for body, priority in puts:
        await kazoo.ask("put", place, body.hex(), priority)
    assert await awaited(session, queue, 5) == [b"one", b"two", b"three", b"four", b"five"]
    for body, priority in puts:
        await queue.put(body, priority=priority)
    for body in (b"one", b"two", b"three", b"four", b"five"):
        assert await kazoo.get(place, *([PATIENCE] if locking else [])) == body
        if locking:
            assert await kazoo.ask("consume", place)
    assert await queue.size() == 0


async def test_kazoo_gets_and_holds_its_unconsumed_message_and_we_do_not_get_it(
    session: zq.QueueSession, kazoo: Kazoo, path: str
) -> None:
    place = f"{path}-locking"
    queue = session.kazoo_queue(place)
    assert not await kazoo.ask("consume", place)
    assert not await kazoo.ask("holds_lock", place)
    await queue.put(b"one")
    assert [await kazoo.get(place, PATIENCE) for _ in range(2)] == [b"one", b"one"]
    assert await kazoo.ask("holds_lock", place)
    assert await drained(session, queue) == []
    assert await queue.claimed() == 1
    assert await kazoo.ask("consume", place)
    assert not await kazoo.ask("holds_lock", place)
    assert not await kazoo.ask("consume", place)
    assert await queue.size() == 0


async def test_we_hold_a_message_until_the_commit_and_cannot_commit_it_twice(
    session: zq.QueueSession, kazoo: Kazoo, path: str
) -> None:
    """kazoo's consume is true only once; for kazoo, our lock is like its own."""
    place = f"{path}-locking"
    queue = session.kazoo_queue(place)
    await kazoo.ask("put", place, b"one".hex(), 100)
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(queue, timeout=PATIENCE) is not None
        assert await kazoo.get(place, 0.2) is None
        await tx.commit()
        with pytest.raises(TransactionClosedError):
            await tx.commit()
    assert await kazoo.ask("len", place) == 0


async def test_each_side_takes_a_message_that_the_other_released(
    session: zq.QueueSession, kazoo: Kazoo, path: str
) -> None:
    place = f"{path}-locking"
    queue = session.kazoo_queue(place)
    await queue.put(b"one")
    assert await kazoo.get(place, PATIENCE) == b"one"
    assert await kazoo.ask("release", place)
    assert not await kazoo.ask("holds_lock", place)
    assert not await kazoo.ask("release", place)
    async with session.transaction(autocommit=False) as tx:
        message = await tx.take(queue, timeout=PATIENCE)
        assert message is not None
        await tx.rollback(delay=0)
    assert await kazoo.get(place, PATIENCE) == b"one"
    assert await kazoo.ask("consume", place)
    assert await queue.size() == 0


async def test_one_of_several_concurrent_consumers_gets_a_message(
    session: zq.QueueSession, other: zq.QueueSession, kazoo: Kazoo, path: str
) -> None:
    """Each takes without waiting; two of them find the message locked."""
    place = f"{path}-locking"
    await session.kazoo_queue(place).put(b"one")
    got = await asyncio.gather(kazoo.get(place, 0), *(take_and_hold(opened, place) for opened in (session, other)))
    assert (got.count(b"one"), got.count(None)) == (1, 2)


async def take_and_hold(session: zq.QueueSession, place: str) -> bytes | None:
    """Take a message without waiting, and hold it until the session ends."""
    tx = await session.transaction().__aenter__()
    message = await tx.take(session.kazoo_queue(place))
    return None if message is None else message.body
