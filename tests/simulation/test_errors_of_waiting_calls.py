"""Errors that waiting cannot resolve: each caller gets them once per call, however many requests it makes."""

from __future__ import annotations

import asyncio
import gc
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.errors import ConfigConflictError
from aiozkqueue.session.internals import state_of
from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.testing.simulator import Cluster, Delays, Ensemble, VirtualLoop
from aiozkqueue.zookeeper import Create, MultiError, NoAuthError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiozkqueue.zookeeper import Operation


def _deny(session: zq.QueueSession, patch: pytest.MonkeyPatch) -> None:
    """Refuse this session's claims, as an ACL on the locks does."""
    zookeeper = session._runtime.zookeeper
    multi = zookeeper.multi

    def refusing(
        operations: Sequence[Operation], **options: Any
    ) -> Awaitable[object]:  # passes the arguments on unchanged
        for index, operation in enumerate(operations):
            if isinstance(operation, Create) and "/locks/" in operation.path:
                refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                refused.set_exception(MultiError(index, NoAuthError(operation.path)))
                return refused
        return multi(operations, **options)

    patch.setattr(zookeeper, "multi", refusing)


def test_a_loop_with_two_denied_requests_for_messages_raises_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It continues after the user gets the permission."""

    async def main() -> int:
        shown, used_up = 0, asyncio.Event()

        async def loop(deliveries: zq.Consumer[bytes], until: int) -> None:
            nonlocal shown
            async for _ in deliveries:
                shown += 1
                if shown == 200:
                    used_up.set()
                if shown == until:
                    return

        async with simulated() as cluster, cluster.connect() as session, cluster.connect() as other:
            await other.queue("jobs").put_many([b"job"] * 200)
            async with session.queue("jobs").consume(prefetch=32) as deliveries:
                looping = asyncio.create_task(loop(deliveries, 201))
                await used_up.wait()
                with monkeypatch.context() as patch:
                    _deny(session, patch)
                    await other.queue("jobs").put(b"job")
                    with pytest.raises(zq.AccessDeniedError):
                        await looping
                await loop(deliveries, 201)
        return shown

    assert run_virtual(main) == 201


@pytest.mark.parametrize("looks", [False, True])
def test_closing_a_session_leaves_no_unretrieved_errors_of_its_loops(*, looks: bool) -> None:
    """Neither errors that the loop did not raise again, nor errors of requests that it did not await."""

    async def main() -> list[str]:
        shown, used_up, closed = 0, asyncio.Event(), asyncio.Event()

        async def loop(session: zq.QueueSession) -> None:
            nonlocal shown
            async with session.queue("jobs").consume(prefetch=32) as deliveries:
                async for _ in deliveries:
                    shown += 1
                    if shown == 200:
                        used_up.set()
                        if not looks:
                            await closed.wait()
                            break

        async with simulated() as cluster, cluster.connect() as session:
            await session.queue("jobs").put_many([b"job"] * 200)
            looping = asyncio.create_task(loop(session))
            await used_up.wait()
            await asyncio.sleep(0.01)
        closed.set()
        if looks:
            with pytest.raises(zq.SessionClosedError):
                await looping
        else:
            await looping
        del looping
        gc.collect()  # reports exceptions that were never retrieved
        virtual = asyncio.get_running_loop()
        assert isinstance(virtual, VirtualLoop)
        return list(virtual.failures)

    assert run_virtual(main) == []


def test_a_queue_with_groups_refuses_a_loop_with_filters_every_time() -> None:
    """Its second request had received messages that were locked by message instead of by group."""

    async def main() -> None:
        async with simulated() as cluster, cluster.connect() as session, cluster.connect() as other:
            jobs = session.queue("jobs")
            for _ in range(3):
                await other.queue("jobs").put(b"job", group="a", tags={"region": "eu"})
            for _ in range(3):
                async with jobs.consume(filters=zq.Filter("region", "eq", "eu")) as deliveries:
                    with pytest.raises(ConfigConflictError, match="without filters"):
                        await anext(deliveries)

    run_virtual(main)


def test_every_pending_call_reports_that_its_session_was_closed() -> None:
    """At each millisecond, for commits that open their queue, puts with and without options, and operators."""

    async def commit(session: zq.QueueSession) -> None:
        async with session.transaction() as tx:
            assert await tx.take(session.queue("jobs"), timeout=None) is not None
            tx.put("results", b"result")

    async def ask(session: zq.QueueSession, number: int) -> None:
        jobs, another = session.queue("jobs"), session.queue(f"another-{number}")
        asked: list[Callable[[], Awaitable[object]]] = [
            partial(commit, session),
            partial(another.put, b"job"),
            partial(another.put, b"job", delay=60, key="key", unique=True),
            partial(another.put, b"job", group="group"),
            partial(another.configure, zq.QueueConfig(shards=2)),
            jobs.stats,
            jobs.peek,
            jobs.purge,
        ]
        await asked[number]()

    async def main(millisecond: int) -> set[type[BaseException]]:
        def way() -> float:
            return 0.001

        cluster = Cluster(Ensemble(Random(0), delays=Delays(way, way, way, way)), 0)
        async with cluster.connect() as session:
            await session.queue("jobs").put(b"job")
            in_progress = [asyncio.create_task(ask(session, number)) for number in range(8)]
            await asyncio.sleep(millisecond / 1000)
        ended, left = await asyncio.wait(in_progress, timeout=60)
        assert not left
        return {type(error) for task in ended if (error := task.exception()) is not None}

    errors = set[type[BaseException]]().union(*(run_virtual(partial(main, millisecond)) for millisecond in range(24)))
    assert errors
    assert all(issubclass(error, zq.SessionClosedError) for error in errors), errors


def test_messages_of_an_ended_session_are_taken_by_the_next_whenever_they_are_released() -> None:
    """At each millisecond, also while the next session lists, and thus sees the free messages."""

    async def main(millisecond: int) -> list[bytes]:
        def way() -> float:
            return 0.001

        cluster = Cluster(Ensemble(Random(0), delays=Delays(way, way, way, way)), 0)
        async with cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig())
            dispatcher = session._runtime.dispatcher(state_of(jobs))
            left = dispatcher.request(2)
            await asyncio.sleep(1)  # the listener runs, and continues
            await jobs.put_many([b"1", b"2"])
            await left.future
            cluster.ensemble.expire(session._runtime.zookeeper.session_id)
            async with session.transaction() as tx:
                taking = asyncio.create_task(tx.take_many(jobs, 2, timeout=30))
                await asyncio.sleep(millisecond / 1000)
                dispatcher.cancel_request(left)  # as if a caller were cancelled while it gets its answer
                return [message.body for message in await taking]

    assert {tuple(run_virtual(partial(main, millisecond))) for millisecond in range(60)} == {(b"1", b"2")}


def test_every_waiting_call_raises_when_a_task_of_its_session_is_cancelled() -> None:
    """It is an idle claiming task, which is cancelled before it is woken or at the same moment."""

    async def main(turns: int) -> list[BaseException]:
        async with simulated() as cluster, cluster.connect() as session, cluster.connect() as other:
            jobs = session.queue("jobs")
            await session.queue("small").configure(zq.QueueConfig(max_size=1))
            await session.queue("small").put(b"full", timeout=None)

            async def take() -> None:
                async with session.transaction() as tx:
                    await tx.take(jobs, timeout=None)

            await other.queue("jobs").put(b"1")
            await take()
            [resting] = [task for task in asyncio.all_tasks() if task.get_name().endswith(": claims")]
            waiting = [asyncio.create_task(take()), asyncio.create_task(session.queue("small").put(b"2", timeout=60))]
            await asyncio.sleep(0.1)
            putting = asyncio.create_task(other.queue("jobs").put(b"2"))
            for _ in range(turns):
                await asyncio.sleep(0)
            resting.cancel()
            await putting
            ended, hanging = await asyncio.wait([*waiting, asyncio.create_task(jobs.size())], timeout=30)
            assert not hanging
            with pytest.raises(zq.SessionClosedError, match=r"has failed.*cancelled by another task"):
                await jobs.put(b"3")
            return [error for task in ended if (error := task.exception()) is not None]

    for turns in range(30):
        errors = run_virtual(partial(main, turns))
        assert errors
        assert all(isinstance(error, zq.QueueError) for error in errors)


def test_a_call_that_is_being_put_when_its_session_closes_raises_once() -> None:
    async def main() -> tuple[list[type[BaseException]], list[str]]:
        raised: list[type[BaseException]] = []
        async with simulated() as cluster, asyncio.timeout(100):
            cluster.ensemble.delays.network = lambda: 0.01
            async with cluster.connect() as session:
                calling = asyncio.create_task(session.queue("quotes").call(b"apples", timeout=50))
                await asyncio.sleep(0.05)
            await asyncio.wait({calling})
            raised += [type(error) for error in [calling.exception()] if error is not None]
            del calling
            gc.collect()
        loop: Any = asyncio.get_running_loop()  # the simulated loop, which keeps the errors instead of logging them
        return raised, loop.failures

    raised, failures = run_virtual(main, limit=200)
    assert [issubclass(error, zq.SessionClosedError) for error in raised] == [True]
    assert failures == []
