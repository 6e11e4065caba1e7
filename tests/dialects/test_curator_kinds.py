"""Every kind of Curator queue: each program consumes the messages of the other, in the promised order."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.dialects.framing import frame

from .test_kazoo import awaited, drained, wait_for_size

if TYPE_CHECKING:
    from tests.observer import Observer

    from .peers import Curator

pytestmark = pytest.mark.timeout(120)

MOST, LEAST = 2**31 - 1, -(2**31)
PRIORITIES = [10, MOST, 0, -1, LEAST, 0, 2**30, -10]


async def test_we_and_curator_follow_each_others_priorities(
    session: zq.QueueSession, curator: Curator, path: str
) -> None:
    locks = f"{path}-locks"
    queue = session.curator_queue(path, lock_path=locks, kind="priority")
    await curator.ask("open", "q", "priority", path, locks, 0)
    by_priority = sorted(range(len(PRIORITIES)), key=lambda index: PRIORITIES[index])
    for index, priority in enumerate(PRIORITIES):
        await curator.ask("put", "q", bytes([index]).hex(), priority)
    await curator.ask("put", "q", f"{b'one'.hex()},{b'two'.hex()}", 3)
    expected = [bytes([index]) for index in by_priority]
    at_three = sum(priority <= 3 for priority in PRIORITIES)
    assert await drained(session, queue) == [*expected[:at_three], b"one", b"two", *expected[at_three:]]

    for index, priority in enumerate(PRIORITIES):
        await queue.put(bytes([index]), priority=priority)
    await curator.ask("consume", "c", "priority", path, locks, "show", 1)
    assert await curator.shown("c", len(PRIORITIES)) == expected


async def test_an_urgent_curator_message_overtakes_listed_ones(session: zq.QueueSession, path: str) -> None:
    queue = session.curator_queue(path, lock_path=f"{path}-locks", kind="priority")
    for index in range(20):
        await queue.put(b"%d" % index, priority=5)
    async with session.transaction() as tx:
        first = await tx.take(queue, timeout=30)
        await put_in_another_transaction(session, queue)
    async with session.transaction() as tx:
        second = await tx.take(queue, timeout=30)
    assert first is not None
    assert second is not None
    assert (first.body, second.body) == (b"0", b"urgent")


async def put_in_another_transaction(session: zq.QueueSession, queue: zq.Queue[bytes]) -> None:
    """Put in a separate transaction, committed at once."""
    async with session.transaction() as tx:
        tx.put(queue, b"urgent", priority=-5)


async def test_we_and_curator_follow_each_others_delays(
    session: zq.QueueSession, curator: Curator, path: str, server_view: Observer
) -> None:
    locks, hour = f"{path}-locks", 3_600_000
    queue = session.curator_queue(path, lock_path=locks, kind="delay")
    await curator.ask("open", "q", "delay", path, locks, 0)
    await curator.ask("put", "q", b"not today".hex(), round(time.time() * 1000) + hour)
    await curator.ask("put", "q", b"first".hex(), round(time.time() * 1000) - 1000)
    assert await drained(session, queue) == [b"first"]
    now = round(time.time() * 1000)
    await curator.ask("put", "q", b"last".hex(), now + 1200)
    await curator.ask("put", "q", b"second".hex(), now + 600)
    assert await awaited(session, queue, 2) == [b"second", b"last"]
    assert time.time() * 1000 >= now + 1200

    async with session.transaction() as tx:
        tx.put(queue, b"later", delay=1)
        tx.put(queue, b"at once")
    due = sorted(int(name.split("|")[1], 16) for name in await server_view.children(path))[-2]
    await curator.ask("consume", "c", "delay", path, locks, "show", 1)
    assert await curator.shown("c", 2) == [b"at once", b"later"]
    assert time.time() * 1000 >= due
    await wait_for_size(queue, 1)


async def test_a_message_whose_time_is_no_java_long_is_due_at_once_for_both(
    session: zq.QueueSession, curator: Curator, path: str, server_view: Observer
) -> None:
    queue = session.curator_queue(path, lock_path=f"{path}-locks", kind="delay")
    await server_view.create(f"{path}/queue-|FFFFFFFFFFFFFFFF|0000000000", frame([b"ours"]))
    assert await drained(session, queue) == [b"ours"]
    await server_view.create(f"{path}/queue-|FFFFFFFFFFFFFFFF|0000000001", frame([b"theirs"]))
    await server_view.create(f"{path}/queue-|7FFFFFFFFFFFFFFF|0000000002", frame([b"never"]))
    await curator.ask("consume", "c", "delay", path, f"{path}-locks", "show", 1)
    assert await curator.shown("c") == [b"theirs"]
    assert await drained(session, queue) == []
    assert await curator.shown_until_now("c") == []


async def test_a_failed_message_keeps_its_delay_and_is_redelivered(session: zq.QueueSession, path: str) -> None:
    queue = session.curator_queue(path, lock_path=f"{path}-locks", kind="delay")
    await queue.put(b"early")
    await queue.put(b"late", delay=0.7)
    async with session.transaction(autocommit=False) as tx:
        first = await tx.take(queue, timeout=30)
        await tx.rollback(delay=0)
    assert first is not None
    assert await awaited(session, queue, 2) == [b"early", b"late"]


async def test_we_and_curator_remove_each_others_messages_by_id(
    session: zq.QueueSession, curator: Curator, path: str, server_view: Observer
) -> None:
    locks = f"{path}-locks"
    queue = session.curator_queue(path, lock_path=locks, kind="id")
    await curator.ask("open", "q", "id", path, locks, 0)
    for number in range(3):
        await curator.ask("put", "q", b"java".hex(), "a/b|c")
        await queue.put(b"%d" % number, key="mine")
    await queue.put(b"other", key="other")
    names = await server_view.children(path)
    assert {name.split("|")[1] for name in names} == {"a_b_c", "mine", "other"}
    assert await curator.ask("remove", "q", "mine") == "3"
    async with session.transaction() as tx:
        held = await tx.take(queue, timeout=30)
        assert held is not None
        assert await queue.remove("a/b|c") == 2  # the third message is held
    assert (held.body, await queue.remove("nobody")) == (b"java", 0)
    await curator.ask("consume", "c", "id", path, locks, "show", 1)
    assert await curator.shown("c") == [b"other"]
    with pytest.raises(zq.InvalidOptionError, match="an id with each put"):
        await queue.put(b"without an id")


async def test_we_and_curator_share_simple_queues(session: zq.QueueSession, curator: Curator, path: str) -> None:
    queue = session.curator_queue(path, kind="simple")
    assert await curator.ask("poll", path, 0) == "none"
    assert await drained(session, queue) == []
    for body in (b"one", b"\x00\xff"):
        assert await curator.ask("offer", path, body.hex()) == "true"
    assert [message.body for message in await queue.peek()] == [b"one", b"\x00\xff"]
    assert await drained(session, queue) == [b"one", b"\x00\xff"]
    await queue.put_many([b"three", b"four"])
    assert await curator.ask("peek", path) == b"three".hex()
    assert [await curator.ask("poll", path, 1) for _ in range(3)] == [b"three".hex(), b"four".hex(), "none"]


async def test_a_bounded_queue_limits_us_and_curator(
    session: zq.QueueSession, other: zq.QueueSession, curator: Curator, path: str
) -> None:
    """Both count the last put: our session because it has not listed before, Curator because the test waits for it."""
    locks = f"{path}-locks"
    queue, other_queue = (opened.curator_queue(path, lock_path=locks) for opened in (session, other))
    await queue.configure(zq.QueueConfig(max_size=3))
    await curator.ask("open", "q", "queue", path, locks, 3)
    await queue.put_many([b"1", b"2"])
    await curator.ask("put", "q", b"3".hex())
    with pytest.raises(zq.QueueFullError):
        await other_queue.put(b"4")
    async with asyncio.timeout(60):
        while await curator.ask("cached", "q") != "3":  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.02)
    assert await curator.ask("put", "q", b"4".hex(), 300) == "false"
    waiting = asyncio.create_task(other_queue.put(b"4", timeout=60))
    assert await awaited(session, queue, 1) == [b"1"]
    await waiting
    assert await drained(session, queue) == [b"2", b"3", b"4"]


async def test_the_shards_of_a_sharder_are_read_and_written(
    session: zq.QueueSession, curator: Curator, path: str, server_view: Observer
) -> None:
    locks = f"{path}-locks"
    assert int(await curator.ask("shard", "s", path, f"{path}-leader", locks, 10_000, 10)) >= 1
    shards = session.curator_shards(path, lock_path=lambda shard: f"{locks}/{shard.rpartition('/')[2]}")
    await curator.ask("shardput", "s", b"java".hex())
    assert await shards.size() == 1
    (queue,) = await shards.queues()
    assert await drained(session, queue) == [b"java"]
    await server_view.create(f"{path}/queue-another")
    for number in range(4):
        await shards.put(b"%d" % number)
    assert [await queue.size() for queue in await shards.queues()] == [2, 2]
    shard = queue.name.rpartition("/")[2]
    await curator.ask("consume", "c", "queue", queue.name, f"{locks}/{shard}", "show", 1)
    assert len(await curator.shown("c", 2)) == 2
    assert await session.curator_shards(f"{path}-new").size() == 0
