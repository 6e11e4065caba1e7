"""After much work, the memory and the numbers of tasks, sockets, watches and znodes are as before.

``make leaks`` runs the tests for ten times as long.
"""

from __future__ import annotations

import asyncio
import os
import random
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import FaultProxy, ServerOptions
from tests.leaks.measures import Held, Memory, held, memory
from tests.observer import Observer, observer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiozkqueue.testing import EmbeddedZooKeeper

LONG = "AIOZKQUEUE_LEAKS" in os.environ
MESSAGES = 200_000 if LONG else 20_000
RECONNECTIONS = 1_000 if LONG else 100
CANCELLATIONS = 1_000 if LONG else 200
WARM_UP = 2_000
#: Maximum number of passes of all messages. Another pass is made only if the memory has grown in each pass before.
PASSES = 3
#: The number of outcomes that a session remembers: few, so that this memory is full before the measurement.
OUTCOMES_KEPT = 10
#: The memory blocks that other parts of the process may use: up to a tenth of a block for each message.
SLACK = 2_000
#: Bytes of pages that the allocator may keep.
RESIDENT_SLACK = 24 * 1024 * 1024

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800 if LONG else 400)]


@pytest.fixture(scope="module")
def server(embedded_server: Callable[[ServerOptions], EmbeddedZooKeeper]) -> str:
    """A separate server, whose watches and connections can be counted."""
    return embedded_server(ServerOptions(fsync=False, tick_time=0.1)).hosts


@pytest.fixture
def root() -> str:
    return f"/leaks-{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def view(server: str) -> AsyncIterator[Observer]:
    async with observer(server) as watching:
        yield watching


@pytest.fixture(autouse=True)
def _few_outcomes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiozkqueue.session.core.OUTCOMES_KEPT", OUTCOMES_KEPT)


async def returned_to(before: Held, look: Callable[[], Awaitable[Held]]) -> None:
    """Wait until the counts are as before; a server notices the end of a client late. Raises: AssertionError."""
    now = await look()
    for _ in range(600):
        if now == before:
            break
        await asyncio.sleep(0.1)
        now = await look()
    assert now == before


async def at_rest(look: Callable[[], Awaitable[Held]]) -> Held:
    """Wait until the counts no longer change: all messages are consumed, and watches are those of an idle client."""
    now = await look()
    async with asyncio.timeout(60):
        while True:
            await asyncio.sleep(2.5)  # longer than a watch lingers, a reconnection waits, and an idle task is kept
            before, now = now, await look()
            if now == before and not any(folder.endswith("/locks") for folder in now.znodes):
                return now


def grown(before: Memory, after: Memory) -> str | None:
    """Return what has grown."""
    if after.blocks - before.blocks >= SLACK:
        return f"{after.blocks - before.blocks} blocks"
    if after.resident - before.resident >= RESIDENT_SLACK:
        return f"{after.resident - before.resident} bytes"
    return None


def assert_no_growth(before: Memory, after: Memory) -> None:
    assert grown(before, after) is None


async def pass_through(session: zq.QueueSession, count: int) -> None:
    """Put and consume messages, some of whose deliveries put a message to a second queue, and consume those."""
    first, second = session.queue("first"), session.queue("second")
    body = b"x" * 100
    for start in range(0, count, 1000):
        await first.put_many([body] * min(1000, count - start))
        async with first.consume(until_idle=0, prefetch=128, settle="next") as deliveries:
            async for delivery in deliveries:
                if start % 10_000 == 0:
                    delivery.put(second, body)
    async with second.consume(until_idle=0, prefetch=128) as deliveries:
        async for _ in deliveries:
            pass


async def test_messages_leave_nothing_behind(server: str, root: str, view: Observer) -> None:
    outside = await held(view, server, root)
    async with zq.connect(server, root=root, session_timeout=20) as session:
        await pass_through(session, WARM_UP)  # fill the caches and the arenas of the allocator

        async def look() -> Held:
            return await held(view, server, root)

        before, measured = await at_rest(look), [await memory()]
        for _ in range(PASSES):  # a leak grows in each pass, and a cache only until it is full
            await pass_through(session, MESSAGES)
            assert await at_rest(look) == before  # as when the memory was measured, without a last bundle or timers
            measured.append(await memory())
            if grown(*measured[-2:]) is None:
                break
        assert grown(*measured[-2:]) is None, measured
        assert before.znodes == {"first/consumers": 1, "second/consumers": 1, ".clients": 1}
        assert await session.queue("first").size() == await session.queue("second").size() == 0
    await closed(outside, view, server, root)


async def drained(queue: zq.Queue[bytes], count: int) -> list[str]:
    """Consume until this many messages have arrived, even if they are released late; return their ids."""
    seen: list[str] = []
    async with queue.consume(until_idle=60) as deliveries:
        async for delivery in deliveries:
            await delivery.commit()
            seen.append(delivery.id)
            if len(set(seen)) == count:
                break
    return seen


async def closed(outside: Held, view: Observer, server: str, root: str) -> None:
    """Wait until a closed client has left nothing but its commit slots."""

    async def look() -> Held:
        now = await held(view, server, root)
        return Held(now.tasks, now.sockets, now.watches, now.connections, now.sessions, outside.znodes)

    await returned_to(outside, look)
    assert (await held(view, server, root)).znodes.keys() <= {".clients"}


async def test_reconnections_leave_nothing_behind(server: str, root: str, view: Observer) -> None:
    outside = await held(view, server, root)
    async with FaultProxy(server) as proxy, zq.connect(proxy.hosts, root=root, session_timeout=20) as session:
        queue = session.queue("jobs")

        async def handler(_: zq.Delivery[bytes]) -> None: ...

        async def reconnect(times: int) -> None:
            for number in range(times):
                reached = proxy.accepted
                proxy.reset_connections()
                await queue.put(b"%d" % number)
                while proxy.accepted == reached:  # noqa: ASYNC110 -- the proxy counts, without an event
                    await asyncio.sleep(0.001)

        async def emptied() -> None:
            async with asyncio.timeout(60):
                while await queue.size():  # noqa: ASYNC110 -- the listener does it, without an event
                    await asyncio.sleep(0.02)

        async def look() -> Held:
            return await held(view, server, root)

        async with session.listener(queue, handler):
            await reconnect(max(20, RECONNECTIONS // 10))
            await emptied()
            before, begun = await at_rest(look), await memory()
            await reconnect(RECONNECTIONS)
            await emptied()
            await returned_to(before, look)
            assert_no_growth(begun, await memory())
            assert before.sessions == outside.sessions + 1  # all in one ZooKeeper session
    await closed(outside, view, server, root)


async def test_cancelled_consumers_leave_nothing_behind(server: str, root: str, view: Observer) -> None:
    chance = random.Random(7)
    outside = await held(view, server, root)
    async with zq.connect(server, root=root, session_timeout=20) as session:
        queue = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0)))

        async def consume() -> None:
            async with queue.consume(prefetch=8) as deliveries:
                async for _ in deliveries:
                    await asyncio.sleep(chance.random() * 0.01)
                    raise RuntimeError  # the transaction is rolled back, so the messages stay

        async def take() -> None:
            async with session.transaction() as tx:
                await tx.take(queue)
                await asyncio.sleep(1)

        async def listen() -> None:
            async def handler(_: zq.Delivery[bytes]) -> None:
                await asyncio.sleep(1)

            await session.listener(queue, handler, concurrency=4).run()

        async def cancel(times: int) -> None:
            await queue.put_many([b"x"] * 50)
            for number in range(times):
                task = asyncio.ensure_future((consume, take, listen)[number % 3]())
                await asyncio.sleep(chance.random() * 0.02)
                task.cancel()
                with suppress(asyncio.CancelledError, RuntimeError):
                    await task
            ids = await drained(queue, 50)
            assert len(ids) == len(set(ids)) == 50  # no message is lost or duplicated
            assert await queue.size() == 0

        async def look() -> Held:
            return await held(view, server, root)

        await cancel(max(60, CANCELLATIONS // 10))
        before, begun = await at_rest(look), await memory()
        await cancel(CANCELLATIONS)
        await returned_to(before, look)
        assert_no_growth(begun, await memory())
        assert not {"jobs/locks", "jobs/meta"} & before.znodes.keys()
        assert before.watches == outside.watches
        assert await queue.size() == 0
    await closed(outside, view, server, root)


async def test_sessions_that_come_and_go_leave_nothing_behind(server: str, root: str, view: Observer) -> None:
    outside = await held(view, server, root)

    async def come_and_go(times: int) -> None:
        for _ in range(times):
            async with zq.connect(server, root=root, session_timeout=20) as session:
                await session.queue("jobs").put(b"x")
                async with session.transaction() as tx:
                    await tx.take(session.queue("jobs"), timeout=30)

    await come_and_go(max(20, RECONNECTIONS // 10))
    begun = await memory()
    await come_and_go(RECONNECTIONS)
    assert_no_growth(begun, await memory())
    await closed(outside, view, server, root)
