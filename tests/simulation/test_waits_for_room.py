"""Puts that wait for room in bounded queues leave nothing behind, whatever fault occurs, and whenever.

At the end, while the session that waited is still alive, the tests check the servers: the session has no entry as a
waiter and no lock, each message exists once, and the session's count of its locks is that of the servers.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing.simulator import Cluster, Delays, Ensemble, Fault, run_virtual
from tests.simulation.faulty_client import FAULTY, SESSION_TIMEOUT, Result, cluster_with_session, stop_faults

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing.simulator import Request
    from aiozkqueue.testing.simulator.server import ServerConnection


def cluster_of(seconds: float) -> Cluster:
    """Return a cluster in which every network step takes this many seconds."""

    def way() -> float:
        return seconds

    return Cluster(Ensemble(Random(1), delays=Delays(way, way, way, way)), 1)


def bodies(cluster: Cluster, queue: str) -> list[bytes]:
    """Return the last byte of each payload in a queue."""
    nodes = cluster.ensemble.tree.nodes
    return [node.data[-1:] for path, node in nodes.items() if path.startswith(f"/zms/{queue}/items/")]


async def take_two(other: zq.QueueSession, waiting: list[asyncio.Task[None]]) -> None:
    for _ in waiting:
        async with other.transaction() as tx:
            assert await tx.take(other.queue("small"), timeout=10) is not None
        await asyncio.sleep(3)


async def widen(other: zq.QueueSession, _: list[asyncio.Task[None]]) -> None:
    await other.queue("small").configure(zq.QueueConfig(max_size=4))


async def have_no_size(other: zq.QueueSession, _: list[asyncio.Task[None]]) -> None:
    await other.queue("small").configure(zq.QueueConfig(max_size=0))


async def cancel_the_first(other: zq.QueueSession, waiting: list[asyncio.Task[None]]) -> None:
    waiting[0].cancel()
    await asyncio.sleep(1)
    await take_two(other, waiting)


def check_servers(cluster: Cluster, ended: list[asyncio.Task[None]]) -> list[str]:
    """Return what is wrong on the servers after the put and the transaction have ended in this way."""
    put, moved = (not task.cancelled() and not isinstance(task.exception(), zq.SessionExpiredError) for task in ended)
    stored = sorted(body for body in bodies(cluster, "small") if body not in (b"1", b"2"))
    trouble = [path for path in cluster.ensemble.tree.nodes if "/waiting/" in path or "/locks/lock-" in path]
    if stored != [b"p"] * put + [b"t"] * moved:
        trouble.append(f"{stored} are there")
    if bodies(cluster, "jobs") != [b"j"] * (not moved):
        trouble.append(f"jobs are {bodies(cluster, 'jobs')}")
    return trouble


def wait_for_room(
    act: Callable[[zq.QueueSession, list[asyncio.Task[None]]], Awaitable[None]],
    number: int = 0,
    fault: Fault | None = None,
    servers: int = 1,
) -> Result:
    """Have a put and a transaction wait for room until a client acts.

    A fault hits the session's request ``number``; without a fault, its ZooKeeper session ends with that request.
    """
    result = Result()

    async def main() -> None:
        async with cluster_with_session(servers) as (cluster, other):
            ensemble = cluster.ensemble
            small = other.queue("small")
            await small.configure(zq.QueueConfig(max_size=2))
            await small.put_many([b"1", b"2"], timeout=None)
            await other.queue("jobs").put(b"j")

            async with cluster.connect(session_timeout=SESSION_TIMEOUT, name=FAULTY) as session:

                async def be_idle() -> None:
                    async with session.queue("quiet").consume() as deliveries:
                        await anext(deliveries)

                async def put() -> None:
                    await session.queue("small").put(b"p", timeout=None)

                async def move() -> None:
                    async with session.transaction() as tx:
                        assert await tx.take(session.queue("jobs"), timeout=None) is not None
                        tx.put("small", b"t")

                result.inject(ensemble, number, fault)
                idle = asyncio.create_task(be_idle())  # registered as a consumer in each ZooKeeper session
                waiting = [asyncio.create_task(put()), asyncio.create_task(move())]
                await asyncio.sleep(0.5)
                await act(other, waiting)
                _, hanging = await asyncio.wait(waiting, timeout=60)
                stop_faults(ensemble)
                await asyncio.sleep(20)
                result.trouble += [f"{task.get_coro()} hangs" for task in hanging]
                result.trouble += check_servers(cluster, waiting)
                zookeeper = session._runtime.zookeeper
                counted = session._runtime._budgets.of(zookeeper.generation).used
                held = sum(len(path) + 4 for path in ensemble.tree.ephemerals.get(zookeeper.session_id, ()))
                if counted != held:
                    result.trouble.append(f"it has {held} bytes of ephemerals, and counts {counted}")
                idle.cancel()
                with suppress(asyncio.CancelledError):
                    await idle

    run_virtual(main)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("act", [take_two, widen, have_no_size, cancel_the_first])
def test_a_fault_at_any_request_of_a_wait_for_room_leaves_nothing_behind(
    act: Callable[[zq.QueueSession, list[asyncio.Task[None]]], Awaitable[None]],
) -> None:
    undisturbed = wait_for_room(act)
    assert undisturbed.trouble == []
    assert undisturbed.requests > 10
    faults: list[tuple[int, Fault | None, int]] = [
        (number, fault, 1) for number in range(1, undisturbed.requests + 1) for fault in (*Fault, None)
    ]
    faults += [
        (number, None, 3) for number in range(1, undisturbed.requests + 1)
    ]  # the leader reports the end of the session
    wrong = {fault: result.trouble for fault in faults if (result := wait_for_room(act, *fault)).trouble}
    assert not wrong


@pytest.mark.parametrize("size", [2, 10, 1000])
def test_a_transaction_that_puts_to_several_queues_with_a_size_reads_each_size_once(size: int) -> None:
    """This holds at any distance of the servers, and for any share of the size that a session may use at once."""

    async def main() -> int:
        cluster = cluster_of(0.02)
        async with cluster.connect() as session:
            for queue in "abc":
                await session.queue(queue).configure(zq.QueueConfig(max_size=size))
            looks = 0

            def judge(_: ServerConnection, request: Request) -> None:
                nonlocal looks
                looks += request.kind.name == "READ_MANY" and "/zms/a/items" in request.argument

            cluster.ensemble.judge = judge
            async with asyncio.timeout(30), session.transaction() as tx:
                for queue in "cab":
                    tx.put(queue, b"1")
                    tx.put(queue, b"2")
            return looks

    assert run_virtual(main) == 1


def test_transactions_that_put_to_the_same_queues_in_any_order_are_all_admitted() -> None:
    """This holds at each moment of a take from these queues. Neither queue ever exceeds its size."""
    orders = ["ab", "ba", "abc", "cba", "bca", "a", "b", "c"] * 3

    async def main(milliseconds: int) -> tuple[int, int, int]:
        cluster = cluster_of(0.001)
        most = 0
        async with cluster.connect() as session, cluster.connect() as other, asyncio.TaskGroup() as tasks:
            for queue in "abc":
                await session.queue(queue).configure(zq.QueueConfig(max_size=2))

            async def commit(order: str) -> None:
                async with session.transaction() as tx:
                    for queue in order:
                        tx.put(queue, b"1")

            async def take(queue: str) -> None:
                nonlocal most
                async with other.queue(queue).consume(prefetch=1, until_idle=60) as deliveries:
                    async for _ in deliveries:
                        most = max(most, len(bodies(cluster, queue)))
                        await asyncio.sleep(milliseconds / 1000)

            committing = [tasks.create_task(commit(order)) for order in orders]
            for queue in "abc":
                tasks.create_task(take(queue))
            await asyncio.wait(committing, timeout=600)
            committed = sum(task.done() for task in committing)
            for task in committing:
                task.cancel()
            return committed, most, sum(room._in_progress + len(room._waiters) for room in session._runtime._gates)

    ends = {run_virtual(partial(main, milliseconds)) for milliseconds in range(0, 120, 7)}
    assert ends == {(len(orders), 2, 0)}


def test_a_commit_that_waits_for_room_in_one_queue_uses_no_more_room_of_another() -> None:
    async def main() -> int:
        async with cluster_of(0.002).connect() as session:
            known, unknown = session.queue("known"), session.queue("unknown")
            for queue in (known, unknown):
                await queue.configure(zq.QueueConfig(max_size=32))
            await known.put(b"counts the messages", timeout=5)
            async with session.transaction() as tx:
                for queue in (known, unknown):
                    tx.put(queue, b"1")
            return sum(room._in_progress for room in session._runtime._gates)

    assert run_virtual(main) == 0


def test_two_commits_to_queues_that_get_a_size_meanwhile_do_not_deadlock() -> None:
    """At each millisecond, each commit has been sent without room, and needs room in both queues in another order."""

    async def main(milliseconds: int) -> int:
        cluster = cluster_of(0.002)
        async with cluster.connect() as session, cluster.connect() as other:
            for queue in "ab":
                await session.queue(queue).put(b"opens the queue")

            async def commit(order: str) -> None:
                async with session.transaction() as tx:
                    for queue in order:
                        tx.put(queue, b"1")

            async def configure() -> None:
                for queue in "ab":
                    await other.queue(queue).configure(zq.QueueConfig(max_size=5))

            configuring = asyncio.create_task(configure())
            await asyncio.sleep(milliseconds / 1000)
            commits = [asyncio.create_task(commit("ab"))]
            await asyncio.sleep(0.0001)  # so that the commits do not share a multi
            commits.append(asyncio.create_task(commit("ba")))
            done, hanging = await asyncio.wait(commits, timeout=60)
            for task in hanging:
                task.cancel()
            await configuring
            return len(done)

    assert {run_virtual(partial(main, milliseconds)) for milliseconds in range(60)} == {2}


def test_a_wait_for_room_in_a_queue_without_a_size_ends_when_its_session_closes() -> None:
    """At each millisecond, also when another commit has noticed it, and the waiting put has not."""

    async def main(before: int, milliseconds: int) -> None:
        cluster = cluster_of(0.001)
        async with cluster.connect() as other:
            small = other.queue("small")
            await small.configure(zq.QueueConfig(max_size=1))
            await small.put(b"1", timeout=None)
            async with cluster.connect() as session, session.transaction(autocommit=False) as tx:

                async def put() -> None:
                    async with session.transaction() as another:
                        another.put("small", b"2")

                assert await tx.take(session.queue("small")) is not None
                tx.put("small", b"in its place")
                waiting = asyncio.create_task(put())
                await asyncio.sleep(1)
                configuring = asyncio.create_task(small.configure(zq.QueueConfig(max_size=0)))
                await asyncio.sleep(before / 1000)
                committing = asyncio.create_task(tx.commit())
                await asyncio.sleep(milliseconds / 1000)
                await session._runtime.close()
                _, hanging = await asyncio.wait([waiting, committing, configuring], timeout=60)
                assert not hanging
                for task in (waiting, committing):
                    assert isinstance(task.exception(), zq.SessionClosedError | None)

    for before in range(3):
        for milliseconds in range(30):
            run_virtual(partial(main, before, milliseconds))


def test_a_commit_that_waits_for_room_again_past_its_timeout_reports_not_applied() -> None:
    """The commit was refused because its queue had received a size, so nothing of it is in progress or comes later."""

    async def main(timeout: float) -> tuple[str, zq.Outcome, list[bytes], list[bytes], int]:
        cluster = cluster_of(0.002)
        async with cluster.connect() as session, cluster.connect() as other:
            small, jobs = other.queue("small"), session.queue("jobs")
            await session.queue("small").put(b"opens it, and fills it")
            await jobs.put(b"job")
            async with session.transaction(autocommit=False) as tx:
                assert await tx.take(jobs) is not None
                tx.put("small", b"more")
                await small.configure(zq.QueueConfig(max_size=1))
                with pytest.raises(zq.QueueError) as raised:
                    await tx.commit(timeout=timeout)
            await asyncio.sleep(1)
            async with small.consume(until_idle=5) as deliveries:
                async for _ in deliveries:
                    pass
            await asyncio.sleep(5)
            left = sum(room._in_progress + len(room._waiters) for room in session._runtime._gates)
            return type(raised.value).__name__, tx.outcome, bodies(cluster, "small"), bodies(cluster, "jobs"), left

    ends = {milliseconds: run_virtual(partial(main, milliseconds / 1000)) for milliseconds in range(3, 60)}
    nothing: list[bytes] = []
    known = ("QueueFullError", zq.Outcome.ROLLED_BACK, nothing, [b"b"], 0)
    assert {end[0] for end in ends.values()} <= {"NotCommittedError", "QueueFullError", "OutcomeUnknownError"}
    assert {milliseconds: end for milliseconds, end in ends.items() if end != known and milliseconds > 20} == {}


@pytest.mark.parametrize("messages", [1, 2])
def test_a_commit_without_capacity_in_a_queue_that_became_bounded_meanwhile_says_so(messages: int) -> None:
    async def main() -> None:
        cluster = cluster_of(0.001)
        async with cluster.connect(name="operator") as operator, cluster.connect(name="producer") as producer:
            await producer.queue("small").put_many([b"1", b"2"])
            await operator.queue("small").configure(zq.QueueConfig(max_size=2))
            with pytest.raises(zq.QueueFullError, match="'small' had no capacity within 5 s"):
                async with producer.transaction(commit_timeout=5) as tx:  # it has not read the new size
                    for _ in range(messages):
                        tx.put("small", b"3")
            assert tx.outcome is zq.Outcome.ROLLED_BACK
            assert bodies(cluster, "small") == [b"1", b"2"]

    run_virtual(main)
