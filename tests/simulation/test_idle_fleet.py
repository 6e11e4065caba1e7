"""No message waits 50 ms while a worker is free, whatever the number of sessions and of busy sessions.

A message of a bundle waits up to 100 ms.

The tests run in virtual time. Requests take no time, so the waits are those of the library.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.zookeeper import Create

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.layout import Condition

    Put = Callable[[zq.Queue[bytes], int], Awaitable[object]]
    Open = Callable[[zq.QueueSession], zq.Queue[bytes]]

#: Maximum seconds that a message may wait while a worker is free.
MOST = 0.05
#: The same for a message of a bundle, which the claiming session returns if no taker of the session comes.
MOST_BUNDLED = 0.1
#: Seconds until all sessions are idle.
QUIET = 10
LATER = 60


def jobs(session: zq.QueueSession) -> zq.Queue[bytes]:
    return session.queue("jobs")


def of_curator(session: zq.QueueSession) -> zq.Queue[bytes]:
    return session.curator_queue("/app/queue", lock_path="/app/locks", policy=zq.AtLeastOnce())


async def together(queue: zq.Queue[bytes], number: int) -> None:
    await queue.put_many([b"x"] * number)


async def one_by_one(queue: zq.Queue[bytes], number: int) -> None:
    for _ in range(number):
        await queue.put(b"x")


async def of_priorities(queue: zq.Queue[bytes], number: int) -> None:
    for each in range(number):
        await queue.put(b"x", priority=each % 3)


async def of_groups(queue: zq.Queue[bytes], number: int) -> None:
    for each in range(number):
        await queue.put(b"x", group=f"{each} of {number}")


async def of_tags(queue: zq.Queue[bytes], number: int) -> None:
    for each in range(2 * number):  # only messages with even numbers match the filter of the fleet
        await queue.put(b"x", tags={"for": "fleet" if each % 2 == 0 else "others"})


async def for_later(queue: zq.Queue[bytes], number: int) -> None:
    await queue.put_many([b"x"] * number, delay=LATER)


def waits_of(
    idle: int,
    put: Put = together,
    *,
    busy: int = 0,
    config: zq.QueueConfig | None = None,
    tags: Condition | None = None,
    queue_of: Open = jobs,
    stale: int = 0,
    later: float = 0,
) -> list[float]:
    """Put one message for each idle session, and return how long each waited until its handler began.

    Every session has one handler, which keeps its message. ``stale`` entries below ``consumers/`` lose their
    session.
    """
    begun: list[float] = []

    async def main() -> list[float]:
        ended, clock = asyncio.Event(), asyncio.get_running_loop().time
        running: list[asyncio.Task[None]] = []
        listeners: list[zq.Listener[bytes]] = []

        async def handle(_: zq.Delivery[bytes]) -> None:
            begun.append(clock())
            await ended.wait()

        async with simulated() as cluster, AsyncExitStack() as stack:
            producer, *workers = [await stack.enter_async_context(cluster.connect()) for _ in range(1 + busy + idle)]

            async def listen(some: list[zq.QueueSession]) -> None:
                for session in some:
                    listeners.append(
                        session.listener(queue_of(session), handle, concurrency=1, filters=tags, drain_timeout=0)
                    )
                    running.append(asyncio.create_task(listeners[-1].run()))
                await asyncio.sleep(QUIET)

            queue = queue_of(producer)
            await queue.configure(config or zq.QueueConfig())  # otherwise the fleet would wait for the queue to exist
            if busy:
                await put(queue, busy)
                await listen(workers[:busy])
                await asyncio.sleep(later)
                assert len(begun) == busy
            await listen(workers[busy:])
            if stale:
                client = await cluster.client()
                for number in range(stale):
                    await client.multi([Create(f"/zms/jobs/consumers/stale{number}-1")])
                await client.close()
                await asyncio.sleep(QUIET)
            begun.clear()
            start = clock() + later
            await put(queue, idle)
            await asyncio.sleep(later + QUIET)
            ended.set()
            for listener in listeners:
                listener.stop()
            await asyncio.wait(running)
            return [each - start for each in begun[:idle]]

    return run_virtual(main)


@pytest.mark.parametrize("sessions", [2, 8, 12, 16, 32, 64, 128])
@pytest.mark.parametrize("put", [together, one_by_one])
def test_as_many_idle_sessions_as_messages_start_all_messages_at_once(sessions: int, put: Put) -> None:
    waits = waits_of(sessions, put, config=zq.QueueConfig(bundle=1))
    assert len(waits) == sessions
    assert max(waits) <= MOST


@pytest.mark.parametrize(("busy", "idle"), [(1, 1), (10, 2), (4, 12), (16, 16), (32, 32)])
def test_idle_sessions_take_the_messages_in_the_share_of_busy_sessions(busy: int, idle: int) -> None:
    waits = waits_of(idle, busy=busy, config=zq.QueueConfig(bundle=1))
    assert len(waits) == idle
    assert max(waits) <= MOST


@pytest.mark.parametrize(("busy", "idle"), [(0, 32), (0, 64), (0, 128), (32, 32), (64, 64), (10, 40)])
def test_idle_sessions_share_the_messages_of_bundles(busy: int, idle: int) -> None:
    waits = waits_of(idle, busy=busy, config=zq.QueueConfig(bundle=64))
    assert len(waits) == idle
    assert max(waits) <= MOST_BUNDLED


def test_consumer_entries_without_a_session_delay_no_message() -> None:
    waits = waits_of(2, stale=10)
    assert len(waits) == 2
    assert max(waits) < 0.001, "no message waits because of these entries"


@pytest.mark.parametrize("busy", [0, 6])
@pytest.mark.parametrize(
    ("put", "config", "tags", "queue_of", "later"),
    [
        pytest.param(of_priorities, None, None, jobs, 0, id="priorities"),
        pytest.param(of_groups, None, None, jobs, 0, id="groups"),
        pytest.param(of_tags, None, zq.Filter("for", "eq", "fleet"), jobs, 0, id="filters"),
        pytest.param(for_later, None, None, jobs, LATER, id="delayed"),
        pytest.param(one_by_one, zq.QueueConfig(shards=4), None, jobs, 0, id="shards"),
        pytest.param(together, None, None, of_curator, 0, id="another program's"),
    ],
)
def test_idle_sessions_take_messages_of_every_kind_at_once(
    busy: int,
    put: Put,
    config: zq.QueueConfig | None,
    tags: Condition | None,
    queue_of: Open,
    later: float,
) -> None:
    waits = waits_of(10, put, busy=busy, config=config, tags=tags, queue_of=queue_of, later=later)
    assert len(waits) == 10
    assert max(waits) <= MOST


def test_a_listener_with_messages_at_hand_sends_nothing_after_its_queue_was_deleted_by_force() -> None:
    async def main() -> int:
        async with simulated() as cluster, cluster.connect() as operator, cluster.connect() as session:
            cluster.ensemble.delays.network = lambda: 0.001
            await jobs(operator).configure(zq.QueueConfig(bundle=16))
            await jobs(operator).put_many([b"x"] * 640)

            async def handle(_: zq.Delivery[bytes]) -> None:
                await asyncio.sleep(0.2)

            async with session.listener(jobs(session), handle, concurrency=30):
                await asyncio.sleep(0.3)
                await jobs(operator).admin.delete(force=True)
                await asyncio.sleep(QUIET)
                before = cluster.ensemble.arrivals
                await asyncio.sleep(LATER)
                return cluster.ensemble.arrivals - before

    assert run_virtual(main) == 0
