"""The behaviour in Curator's own tests of its other queues, on queues that it shares with us; see README.md."""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

import aiozkqueue as zq

from .peers import PATIENCE
from .test_kazoo import awaited, drained, wait_for_size

if TYPE_CHECKING:
    from tests.observer import Observer

    from .peers import Curator

pytestmark = pytest.mark.timeout(180)

MOST, LEAST = 2**31 - 1, -(2**31)
THOUSAND = [b"Hello World%d" % number for number in range(1000)]


# -- the priority queue


async def test_messages_with_a_hundred_random_priorities_are_delivered_in_order(
    session: zq.QueueSession, curator: Curator, path: str
) -> None:
    locks, chance = f"{path}-locks", Random(path)
    queue = session.curator_queue(path, lock_path=locks, kind="priority")
    priorities = [LEAST, MOST, *(chance.randint(LEAST, MOST) for _ in range(98))]
    in_order = [b"%d" % priority for priority in sorted(priorities)]
    async with session.transaction() as tx:
        for priority in priorities:
            tx.put(queue, b"%d" % priority, priority=priority)
    await curator.ask("consume", "c", "priority", path, locks, "show", 1)
    assert await curator.shown("c", 100) == in_order
    await wait_for_size(queue, 0)
    await curator.ask("close", "c")
    await curator.ask("open", "q", "priority", path, locks, 0)
    for priority in priorities:
        await curator.ask("put", "q", (b"%d" % priority).hex(), priority)
    assert await awaited(session, queue, 100) == in_order


@pytest.mark.parametrize("whose", ["ours", "theirs"])
async def test_an_urgent_message_overtakes_all_except_the_one_in_flight(
    session: zq.QueueSession, curator: Curator, path: str, whose: str
) -> None:
    """A message that is put while the first is in flight is next, once the consumer has noticed it."""
    locks = f"{path}-locks"
    queue = session.curator_queue(path, lock_path=locks, kind="priority")
    async with session.transaction() as tx:
        for number in range(10):
            tx.put(queue, b"%d" % number, priority=10)
    if whose == "ours":
        async with session.transaction() as tx:
            first = await tx.take(queue, timeout=PATIENCE)
            assert first is not None
            assert first.body == b"0"
            await curator.ask("open", "q", "priority", path, locks, 0)
            await curator.ask("put", "q", b"urgent".hex(), 1)
        assert await awaited(session, queue, 2) == [b"urgent", b"1"]
        return
    await curator.ask("consume", "c", "priority", path, locks, "hold", 1)
    assert await curator.shown("c") == [b"0"]
    await queue.put(b"urgent", priority=1)
    async with asyncio.timeout(60):
        while await curator.ask("cached", "c") != "11":  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.02)
    await curator.ask("go", "c")
    assert await curator.shown("c") == [b"urgent"]


async def test_messages_added_meanwhile_are_taken_in_their_order(session: zq.QueueSession, path: str) -> None:
    queue = session.curator_queue(path, lock_path=f"{path}-locks", kind="priority")
    await queue.put(b"10", priority=10)
    await queue.put(b"1", priority=1)
    assert await awaited(session, queue, 1) == [b"1"]
    for priority in (10, 5, 10, -3):
        await queue.put(b"%d" % priority, priority=priority)
    assert await drained(session, queue) == [b"-3", b"5", b"10", b"10", b"10"]


# -- the delay queue


async def test_a_message_that_is_never_due_delays_no_other(
    session: zq.QueueSession, curator: Curator, path: str
) -> None:
    locks = f"{path}-locks"
    queue = session.curator_queue(path, lock_path=locks, kind="delay")
    await curator.ask("open", "q", "delay", path, locks, 0)
    await curator.ask("put", "q", b"never".hex(), round(time.time() * 1000) + MOST)
    assert await drained(session, queue) == []
    await curator.ask("put", "q", b"now".hex(), round(time.time() * 1000))
    assert await awaited(session, queue, 1) == [b"now"]
    assert await drained(session, queue) == []
    await curator.ask("consume", "c", "delay", path, locks, "show", 1)
    await queue.put(b"now")
    assert await curator.shown("c") == [b"now"]
    await wait_for_size(queue, 1)
    assert await curator.shown_until_now("c") == []


async def test_messages_with_ten_random_due_times_are_delivered_in_order(
    session: zq.QueueSession, curator: Curator, path: str
) -> None:
    """All messages are due, so that only their names determine the order."""
    locks, chance = f"{path}-locks", Random(path)
    queue = session.curator_queue(path, lock_path=locks, kind="delay")
    moments = [round(time.time() * 1000) - 1000 + chance.randrange(1000) for _ in range(10)]
    in_order = [b"%d" % moment for moment in sorted(moments)]
    await curator.ask("open", "q", "delay", path, locks, 0)
    for moment in moments:
        await curator.ask("put", "q", (b"%d" % moment).hex(), moment)
    assert await awaited(session, queue, 10) == in_order


# -- the id queue


@pytest.mark.parametrize("holder", ["ours", "theirs"])
async def test_a_message_in_flight_cannot_be_removed_by_its_id(
    session: zq.QueueSession, curator: Curator, path: str, server_view: Observer, holder: str
) -> None:
    locks = f"{path}-locks"
    queue = session.curator_queue(path, lock_path=locks, kind="id")
    await curator.ask("open", "q", "id", path, locks, 0)
    await queue.put(b"held", key="id")
    if holder == "ours":
        async with session.transaction() as tx:
            assert await tx.take(queue, timeout=PATIENCE) is not None
            assert await curator.ask("remove", "q", "id") == "0"
    else:
        await curator.ask("consume", "c", "id", path, locks, "hold", 1)
        assert await curator.shown("c") == [b"held"]
        assert await queue.remove("id") == 0
        await curator.ask("go", "c")
    await server_view.until(lambda: not server_view._children(path))


async def test_messages_with_a_hundred_random_ids_are_delivered_in_put_order(
    session: zq.QueueSession, curator: Curator, path: str
) -> None:
    locks, chance = f"{path}-locks", Random(path)
    queue = session.curator_queue(path, lock_path=locks, kind="id")
    ids = [str(chance.random()) for _ in range(100)]
    await curator.ask("open", "q", "id", path, locks, 0)
    for item_id in ids:
        await curator.ask("put", "q", item_id.encode().hex(), item_id)
    assert await awaited(session, queue, 100) == [item_id.encode() for item_id in ids]
    async with session.transaction() as tx:
        for item_id in ids:
            tx.put(queue, item_id.encode(), key=item_id)
    await curator.ask("consume", "c", "id", path, locks, "show", 1)
    assert await curator.shown("c", 100) == [item_id.encode() for item_id in ids]


# -- the simple queue


async def test_an_empty_simple_queue_returns_nothing_to_either_side(
    session: zq.QueueSession, curator: Curator, path: str
) -> None:
    queue = session.curator_queue(path, kind="simple")
    assert await curator.ask("poll", path, 1) == "none"
    assert await curator.ask("element", path) == "empty"
    assert await curator.ask("removefirst", path) == "empty"
    async with session.transaction() as tx:
        assert await tx.take(queue) is None
        assert await tx.take(queue, timeout=0.5) is None
    assert await queue.peek(1) == []


async def test_each_side_takes_the_oldest_message_that_the_other_left(
    session: zq.QueueSession, curator: Curator, path: str
) -> None:
    """A take returns the oldest message, and a peek the oldest remaining one, until the queue is empty."""
    queue = session.curator_queue(path, kind="simple")
    await queue.put_many(THOUSAND)
    assert await curator.ask("element", path) == THOUSAND[0].hex()
    assert [await curator.ask("removefirst", path) for _ in range(2)] == [body.hex() for body in THOUSAND[:2]]
    assert await curator.ask("element", path) == THOUSAND[2].hex()
    assert await taken_together(session, queue, 498) == THOUSAND[2:500]
    assert await curator.ask("element", path) == THOUSAND[500].hex()
    assert await taken_together(session, queue, 499) == THOUSAND[500:-1]
    assert [message.body for message in await queue.peek(1)] == THOUSAND[-1:]
    assert await curator.ask("element", path) == THOUSAND[-1].hex()
    assert await curator.ask("take", path) == THOUSAND[-1].hex()
    assert await queue.size() == 0


async def taken_together(session: zq.QueueSession, queue: zq.Queue[bytes], count: int) -> list[bytes]:
    """Take this many messages in transactions of at most a hundred."""
    bodies: list[bytes] = []
    while len(bodies) < count:
        async with session.transaction() as tx:
            bodies += [message.body for message in await tx.take_many(queue, min(100, count - len(bodies)))]
    return bodies


async def test_a_waiting_take_of_a_simple_queue_gets_a_later_message_of_the_other_side(
    session: zq.QueueSession, curator: Curator, path: str
) -> None:
    queue = session.curator_queue(path, kind="simple")
    for body in (b"Hello World0", b"Hello World1"):
        waiting = asyncio.create_task(awaited(session, queue, 1))
        await asyncio.sleep(0.3)  # longer than a take without waiting
        assert await curator.ask("offer", path, body.hex()) == "true"
        assert await waiting == [body]
        taking = asyncio.create_task(curator.ask("take", path))
        await asyncio.sleep(0.3)
        await queue.put(body)
        assert await taking == body.hex()


# -- the sharder


async def test_full_shards_cause_new_ones_up_to_the_maximum(
    session: zq.QueueSession, other: zq.QueueSession, path: str, server_view: Observer
) -> None:
    """Two sessions that put at the same time add the same shard, not two shards."""
    threshold, most = 5, 3
    sides = [opened.curator_shards(path, threshold=threshold, max_queues=most) for opened in (session, other)]
    for _ in range(threshold * (most + 1) // 2):
        await asyncio.gather(*(shards.put(b"x") for shards in sides))
    names = await server_view.children(path)
    assert len(names) == most
    assert all(name.startswith("queue-") and UUID(name.removeprefix("queue-")) for name in names)
    counts = [len(await server_view.children(f"{path}/{name}")) for name in names]
    assert sum(counts) == await sides[0].size() == threshold * (most + 1)
    assert min(counts) >= threshold
    with pytest.raises(zq.InvalidOptionError, match="threshold=0: give an integer of at least 1"):
        session.curator_shards(path, threshold=0)
    with pytest.raises(zq.InvalidOptionError, match="max_queues=0: give an integer of at least 1"):
        session.curator_shards(path, max_queues=0)


async def test_messages_put_into_shards_directly_and_in_a_transaction_are_taken(
    session: zq.QueueSession, path: str
) -> None:
    shards = session.curator_shards(path, threshold=1)
    await shards.put(b"one")
    async with session.transaction() as tx:
        tx.put(await shards.emptiest(), b"two")
    first, second = await shards.queues()
    assert sorted([*await drained(session, first), *await drained(session, second)]) == [b"one", b"two"]


async def test_we_and_a_java_sharder_see_each_others_shards(
    session: zq.QueueSession, curator: Curator, path: str
) -> None:
    """Its leader adds a shard when one is full, we when all are; both have the same shards, also after a restart."""
    locks, leader = f"{path}-locks", f"{path}-leader"
    shards = session.curator_shards(
        path, lock_path=lambda shard: f"{locks}/{shard.rpartition('/')[2]}", threshold=2, max_queues=4
    )

    async def both_have(count: int) -> None:
        async with asyncio.timeout(60):
            while int(await curator.ask("shards", "s")) != count or len(await shards.queues()) != count:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.02)

    assert await curator.ask("shard", "s", path, leader, locks, 2, 2) == "1"
    await curator.ask("shardput", "s", b"theirs".hex())
    await curator.ask("shardput", "s", b"theirs".hex())
    await both_have(2)
    for _ in range(7):
        await shards.put(b"ours")
    await both_have(4)
    bodies = [body for queue in await shards.queues() for body in await drained(session, queue)]
    assert sorted(bodies) == [b"ours"] * 7 + [b"theirs"] * 2
    await curator.ask("close", "s")
    assert await curator.ask("shard", "s", path, leader, locks, 2, 2) == "4"
