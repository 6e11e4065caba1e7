"""Consumers of another program's queue continue after a fault at any request, or a cancellation at any moment.

Some messages fail the first time, so the consumer holds them for a second. At the end, while its session is still
alive, the test checks the servers: every message has been handled and removed, and no lock is left.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import pytest

import aiozkqueue as zq
from aiozkqueue.testing.simulator import Fault, run_virtual
from tests.simulation.faulty_client import FAULTY, SESSION_TIMEOUT, Result, cluster_with_session, stop_faults

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing.simulator import Cluster

QueueOf: TypeAlias = "Callable[[zq.QueueSession], zq.Queue[bytes]]"
UnitOfWork: TypeAlias = "Callable[[zq.QueueSession, zq.Queue[bytes], list[bytes]], Awaitable[None]]"

POLICY = zq.AtLeastOnce(backoff=zq.Fixed(1))
#: Messages that are handled at once. The other messages fail the first time.
EASY = b"2"
#: Milliseconds between the moments of cancellation.
STEP = 31


def of_curator(session: zq.QueueSession) -> zq.Queue[bytes]:
    return session.curator_queue("/app/queue", lock_path="/app/locks", policy=POLICY)


def of_kazoo(session: zq.QueueSession) -> zq.Queue[bytes]:
    return session.kazoo_queue("/app/queue", policy=POLICY)


def without_locks(session: zq.QueueSession) -> zq.Queue[bytes]:
    return session.kazoo_queue("/app/queue", locking=False, policy=POLICY)


async def listen(session: zq.QueueSession, queue: zq.Queue[bytes], handled: list[bytes]) -> None:
    async def handle(delivery: zq.Delivery[bytes]) -> None:
        handled.append(delivery.body)
        if delivery.attempt == 1 and delivery.body != EASY:
            raise zq.Retry

    await session.listener(queue, handle, concurrency=3).run()


async def loop(_: zq.QueueSession, queue: zq.Queue[bytes], handled: list[bytes]) -> None:
    async with queue.consume(prefetch=4) as deliveries:
        async for delivery in deliveries:
            handled.append(delivery.body)
            if delivery.attempt == 1 and delivery.body != EASY:
                await delivery.rollback()


async def take(session: zq.QueueSession, queue: zq.Queue[bytes], handled: list[bytes]) -> None:
    while True:
        async with session.transaction() as tx:
            message = await tx.take(queue, timeout=None)
            assert message is not None
            handled.append(message.body)
            if message.attempt == 1 and message.body != EASY:
                await tx.rollback(delay=1)


async def work_despite_refusals(
    work: UnitOfWork, session: zq.QueueSession, queue: zq.Queue[bytes], handled: list[bytes]
) -> None:
    """Continue after each refused commit."""
    while True:
        with suppress(zq.NotCommittedError):
            await work(session, queue, handled)


async def all_taken(cluster: Cluster, within: float) -> None:
    """Wait until no message is left."""
    nodes = cluster.ensemble.tree.nodes

    def left() -> bool:
        return any(
            path.startswith("/app/queue/") and node.data and "/taken/" not in path for path, node in nodes.items()
        )

    async with asyncio.timeout(within):
        while left():  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.1)


def check_servers(cluster: Cluster, session: zq.QueueSession, handled: list[bytes]) -> list[str]:
    """Return what is wrong on the servers after all messages have been taken."""
    trouble = [
        path for paths in cluster.ensemble.tree.ephemerals.values() for path in paths if "/consumers/" not in path
    ]
    if set(handled) != {b"0", b"1", EASY}:
        trouble.append(f"{handled} were handled")
    if any(dispatcher._candidates.held for dispatcher in session._runtime._dispatchers.values()):
        trouble.append("it takes for held what is free")
    return trouble


async def _put(queue: zq.Queue[bytes], bodies: list[bytes]) -> None:
    """Put the messages, as one item if an item may hold several, so that it is split."""
    if isinstance(queue, zq.CuratorQueue):
        await queue.put_multi(bodies)
    else:
        await queue.put_many(bodies)


def consume(
    queue_of: QueueOf,
    work: UnitOfWork,
    number: int = 0,
    fault: Fault | None = None,
    *,
    servers: int = 1,
    cancelled: float | None = None,
) -> Result:
    """Consume with a fault or the end of the ZooKeeper session at request ``number``, or with a cancellation."""
    result = Result()
    handled: list[bytes] = []

    async def main() -> None:
        async with cluster_with_session(servers) as (cluster, other):
            ensemble = cluster.ensemble
            await queue_of(other).put(b"0")

            async with cluster.connect(session_timeout=SESSION_TIMEOUT, name=FAULTY) as session:
                result.inject(ensemble, number, fault)
                working = asyncio.create_task(work_despite_refusals(work, session, queue_of(session), handled))
                await asyncio.sleep(0.2)
                await _put(queue_of(other), [b"1", EASY])
                if cancelled is not None:
                    await asyncio.sleep(cancelled)
                    working.cancel()
                    await asyncio.wait([working])
                    working = asyncio.create_task(work_despite_refusals(work, session, queue_of(session), handled))
                await all_taken(cluster, 60)
                stop_faults(ensemble)
                await asyncio.sleep(2 * SESSION_TIMEOUT)
                await queue_of(other).put(EASY)  # and the listener still runs
                await all_taken(cluster, 5)
                await asyncio.sleep(0.1)
                result.trouble += check_servers(cluster, session, handled)
                working.cancel()
                await asyncio.wait([working])

    try:
        run_virtual(main)
    except TimeoutError:
        result.trouble.append("not all was taken")
    return result


@pytest.mark.filterwarnings("ignore::aiozkqueue.errors.ImplicitSettleWarning")  # a late commit of a loop
@pytest.mark.slow
@pytest.mark.parametrize(("queue_of", "work"), [(of_curator, listen), (of_kazoo, loop), (without_locks, take)])
def test_a_consumer_of_a_foreign_queue_continues_after_any_fault_and_leaves_no_lock(
    queue_of: QueueOf, work: UnitOfWork
) -> None:
    undisturbed = consume(queue_of, work)
    assert undisturbed.trouble == []
    assert undisturbed.requests > 10
    numbers = range(1, undisturbed.requests + 1)
    wrong = {
        f"{number}, {fault}": result.trouble
        for number in numbers
        for fault in (*Fault, None)
        if (result := consume(queue_of, work, number, fault)).trouble
    }
    for number in numbers:  # with several servers, the leader reports the end of the session
        wrong |= {
            f"{number}, over": result.trouble
            for result in [consume(queue_of, work, number, servers=3)]
            if result.trouble
        }
    for milliseconds in range(0, 1300, STEP):
        result = consume(queue_of, work, cancelled=milliseconds / 1000)
        wrong |= {f"cancelled after {milliseconds} ms": result.trouble} if result.trouble else {}
    assert not wrong
