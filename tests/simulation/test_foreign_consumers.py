"""Consumers of another program's queue continue after a fault at any request, or a cancellation at any moment.

Some messages fail the first time, so the consumer holds them for a second. At the end, while its session is still
alive, the test checks the servers: every message has been handled and removed, and no lock is left.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

import aiozkqueue as zq
from aiozkqueue.dialects.framing import frame
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing.simulator import Fault, Kind, run_virtual, simulated
from aiozkqueue.zookeeper import Create, Delete
from aiozkqueue.zookeeper.wire import error_of
from tests.simulation.faulty_client import FAULTY, SESSION_TIMEOUT, Result, cluster_with_session, stop_faults
from tests.simulation.test_known_configuration import play

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiozkqueue.testing.simulator import Cluster, Request
    from aiozkqueue.testing.simulator.server import ServerConnection
    from aiozkqueue.zookeeper import Operation

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


@pytest.mark.parametrize("recreated", [False, True])
def test_an_item_that_a_peer_takes_before_its_split_is_not_delivered(*, recreated: bool) -> None:
    """Without a lock path, a peer may take an item that we have claimed."""

    async def program(sessions: list[zq.QueueSession]) -> None:
        session, peer = sessions
        queue, handled = session.curator_queue("/app/queue", policy=POLICY), list[bytes]()
        await queue.put_multi([b"1", b"2", b"3"])
        zookeeper: Any = core_of(session).zookeeper  # its methods are replaced
        multi, taken = zookeeper.multi, list[str]()

        async def later(operations: Sequence[Operation], **options: Any) -> Any:  # passes all options on
            (item,) = await core_of(peer).zookeeper.children("/app/queue")
            taken.append(f"/app/queue/{item}")
            again = [Create(taken[0], frame([b"new"]))] if recreated else []
            await core_of(peer).zookeeper.multi([Delete(taken[0]), *again])
            return await multi(operations, **options)

        def intercepted(operations: Sequence[Operation], **options: Any) -> Any:  # passes all options on
            splits = any(isinstance(each, Create) and "-p0000" in each.path for each in operations)
            return (later if splits and not taken else multi)(operations, **options)

        zookeeper.multi = intercepted
        working = asyncio.create_task(work_despite_refusals(take, session, queue, handled))
        await asyncio.sleep(10)
        working.cancel()
        await asyncio.wait([working])
        assert taken
        assert set(handled) == ({b"new"} if recreated else set())
        assert await queue.claimed() == 0

    play(program, 2)


@pytest.mark.parametrize("fault", [Fault.LOST_BEFORE, Fault.LOST_AFTER])
def test_messages_of_an_item_whose_split_stays_unknown_are_delivered_once(fault: Fault) -> None:
    async def main() -> None:
        async with simulated() as cluster, cluster.connect(name=FAULTY) as session, cluster.connect() as other:
            queue, handled = of_curator(session), list[bytes]()
            assert isinstance(queue, zq.CuratorQueue)
            await queue.put_multi([b"1", EASY, b"3"])
            zookeeper: Any = core_of(session).zookeeper  # its methods are replaced
            multi, lost = zookeeper.multi, list[bool]()

            async def refused(_: Sequence[Operation], **__: Any) -> Any:  # Any: options are ignored
                await asyncio.sleep(0.01)
                raise error_of(-1)

            def judge(connection: ServerConnection, request: Request) -> Fault | None:
                splits = request.kind is Kind.MULTI and any(
                    isinstance(each, Create) and "-p0000" in each.path for each in request.argument
                )
                if lost or not splits or connection.client.name != FAULTY:
                    return None
                lost.append(True)
                zookeeper.multi = refused
                return fault

            cluster.ensemble.judge = judge
            working = asyncio.create_task(work_despite_refusals(take, session, queue, handled))
            await asyncio.sleep(5)
            assert lost
            assert handled == []
            zookeeper.multi = multi
            working.cancel()
            await asyncio.wait([working])
            consuming = asyncio.create_task(work_despite_refusals(take, other, of_curator(other), handled))
            await all_taken(cluster, 120)
            consuming.cancel()
            await asyncio.wait([consuming])
            assert sorted(set(handled)) == [b"1", EASY, b"3"]

    run_virtual(main)
