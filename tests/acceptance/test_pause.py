"""Paused queues: no client claims from them, held messages are finished, and puts continue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from tests.integration.queue.conftest import eventually, take_one

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing import ZooKeeperProxy
    from tests.integration.queue.conftest import Opener
    from tests.observer import Observer

    Expire = Callable[[zq.QueueSession], Awaitable[None]]

pytestmark = pytest.mark.timeout(90)

PAUSED = zq.QueueConfig(paused=True)
RESUMED = zq.QueueConfig(paused=False)


async def test_a_paused_queue_delivers_nothing_accepts_puts_and_lets_held_messages_finish(
    session: zq.QueueSession, other: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    queue = session.queue("jobs")
    await queue.put_many([b"1", b"2"])
    async with session.transaction() as tx:
        held = await tx.take(queue, timeout=30)
        assert held is not None
        await other.queue("jobs").configure(PAUSED)
        await other.queue("jobs").put(b"3")
        # No message is delivered, whether or not the session has already read the pause.
        assert await tx.take(queue, timeout=0) is None
        async with other.transaction() as other_tx:
            assert await other_tx.take(other.queue("jobs"), timeout=0.5) is None
        assert await server_view.children(f"{queue_root}/jobs/locks") == [f"lock-{held.id}"]
    stats = await queue.stats()
    assert (stats.paused, stats.size, stats.in_flight) == (True, 2, 0)
    await other.queue("jobs").configure(RESUMED)
    assert [(await take_one(session)).value for _ in range(2)] == [b"2", b"3"]
    assert not (await queue.stats()).paused


async def test_listeners_of_a_paused_queue_continue_when_it_is_resumed(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    queue, other_queue = session.queue("jobs"), other.queue("jobs")
    await queue.configure(zq.QueueConfig())
    await queue.configure(PAUSED)
    handled: list[bytes] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        handled.append(delivery.value)

    async def all_handled() -> bool:
        return len(handled) == 20

    async with session.listener(queue, handler, concurrency=3), other.listener(other_queue, handler):
        await queue.put_many([b"%d" % number for number in range(20)])
        await asyncio.sleep(0.5)
        assert not handled
        await other_queue.configure(RESUMED)
        await eventually(all_handled, 30)
    assert len(set(handled)) == 20


async def test_a_pause_outlives_lost_sessions_and_consumers_do_not_miss_its_end(
    session: zq.QueueSession, open_session: Opener, zookeeper_proxy: ZooKeeperProxy, expire: Expire
) -> None:
    consumer = await open_session(zookeeper_proxy.hosts)
    await session.queue("jobs").configure(zq.QueueConfig(shards=1, paused=True))
    await session.queue("jobs").put(b"1")
    waiting = asyncio.create_task(take_one(consumer, timeout=60))
    await asyncio.sleep(0.3)
    await expire(consumer)
    await asyncio.sleep(0.3)
    assert not waiting.done()
    zookeeper_proxy.stall()
    zookeeper_proxy.reset_connections()
    await session.queue("jobs").configure(RESUMED)  # while the consumer is disconnected
    zookeeper_proxy.heal()
    assert (await waiting).value == b"1"


async def test_groups_wait_while_their_queue_is_paused(session: zq.QueueSession, other: zq.QueueSession) -> None:
    queue = session.queue("jobs")
    await queue.put_many([b"1", b"2"], group="one")
    async with session.transaction() as tx:
        first = await tx.take(queue, timeout=30)
        assert first is not None
        await queue.configure(PAUSED)
    async with other.transaction() as tx:
        assert await tx.take(other.queue("jobs"), timeout=0.5) is None
    await other.queue("jobs").configure(RESUMED)
    assert (await take_one(session)).value == b"2"
