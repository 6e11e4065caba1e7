"""The waiters for the claims of one session: no waiter is skipped, and no waiter gets more than it requested."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.queue.claim.waiters import Waiter, WaitQueue
from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.testing.simulator import Cluster, Delays, Ensemble

if TYPE_CHECKING:
    from aiozkqueue.queue.state.claim import Claim

#: Seconds of a request to the server, or of its answer.
FAR = 0.01
_GIVE, _ANSWER = WaitQueue.assign, Waiter.answer


def _cluster(seed: int) -> Cluster:
    random = Random(seed)

    def slowly() -> float:
        return random.random() * FAR

    return Cluster(Ensemble(random, delays=Delays(slowly, slowly, slowly, slowly)), seed)


class _Moment:
    """Waits until claims have been assigned to waiters, or a waiter has been answered, this many times."""

    def __init__(self, number: int, patch: pytest.MonkeyPatch) -> None:
        self.come: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = number

        def giving(waiters: WaitQueue, *what: Any) -> list[Claim]:  # the arguments are passed on unchanged
            left = _GIVE(waiters, *what)
            self._count()
            return left

        def answering(waiter: Waiter) -> None:
            _ANSWER(waiter)
            self._count()

        patch.setattr(WaitQueue, "assign", giving)
        patch.setattr(Waiter, "answer", answering)

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.come.set_result(None)


def test_a_take_waits_for_one_message_behind_a_listener_with_many_free_slots() -> None:
    """The slots became free one after the other, as the messages came. They do not wait in line separately."""

    async def main() -> int:
        handled = 0

        async def handle(_: zq.Delivery[bytes]) -> None:
            nonlocal handled
            handled += 1

        async with simulated() as cluster, cluster.connect() as session, cluster.connect() as producer:
            jobs = session.queue("jobs")
            async with session.listener(jobs, handle, concurrency=32):
                for _ in range(100):
                    await producer.queue("jobs").put(b"job")
                    await asyncio.sleep(0.5)
                async with session.transaction() as tx:
                    taking = asyncio.create_task(tx.take(jobs, timeout=1000))
                    await asyncio.sleep(0.5)
                    for _ in range(2):
                        await producer.queue("jobs").put(b"job")
                        await asyncio.sleep(0.5)
                    assert taking.done()
                    await taking
        return handled

    assert run_virtual(main) == 101


@pytest.mark.parametrize("limit", [2, 3])
def test_a_take_many_that_has_some_messages_does_not_exceed_its_limit_when_groups_become_free(limit: int) -> None:
    async def main(moment: int) -> int:
        def far() -> float:
            return FAR

        cluster = Cluster(Ensemble(Random(1), delays=Delays(far, far, far, far)), 1)
        async with cluster.connect() as session, cluster.connect() as first, cluster.connect() as second:
            jobs = session.queue("jobs")
            for group, producer in ("a", first), ("b", second), ("c", session):
                await producer.queue("jobs").put_many([b"1", b"2"], group=group)
            async with session.transaction(autocommit=False) as before, session.transaction(autocommit=False) as tx:
                assert len(await before.take_many(jobs, 3, timeout=1)) == 3
                taking = asyncio.create_task(tx.take_many(jobs, limit, timeout=10))
                await asyncio.sleep(1)

                async def commit() -> None:
                    await asyncio.sleep(moment / 1000)
                    await before.commit()

                async def put(producer: zq.QueueSession, milliseconds: int) -> None:
                    await asyncio.sleep(milliseconds / 1000)
                    await producer.queue("jobs").put(b"in no group")

                await asyncio.gather(put(first, 0), put(second, 4), commit())
                taken = len(await taking)
                await tx.commit()
                return taken

    assert max(run_virtual(partial(main, moment)) for moment in range(10, 40)) == limit


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("how", ["stop", "abort", "cancel"])
def test_a_listener_that_ends_as_it_receives_messages_leaves_no_lock(
    how: str, *, grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At that moment, each of its requests may be answered, in progress or waiting.

    It never exceeds its concurrency.
    """

    async def main(number: int, turns: int) -> int:
        finished = handling = most = 0

        async def handle(_: zq.Delivery[bytes]) -> None:
            nonlocal finished, handling, most
            handling += 1
            most = max(most, handling)
            try:
                await asyncio.sleep(random.random() * 2 * FAR)
                finished += 1
            finally:
                handling -= 1

        random, cluster = Random(number), _cluster(number)
        async with cluster.connect() as session, cluster.connect() as other:
            jobs, source = session.queue("jobs", policy=zq.AtLeastOnce(backoff=zq.Fixed(0))), other.queue("jobs")
            await source.configure(zq.QueueConfig())
            listener = session.listener(jobs, handle, concurrency=4)
            running = asyncio.create_task(listener.run())

            async def put() -> None:
                for job in range(20):
                    options: zq.PutOptions = {"group": "ab"[job % 2]} if grouped else {}
                    await source.put(b"job", **options)

            putting, moment = asyncio.create_task(put()), _Moment(number, monkeypatch)
            await moment.come
            for _ in range(turns):
                await asyncio.sleep(0)
            if how == "cancel":
                running.cancel()
            else:
                getattr(listener, how)()
            await asyncio.wait([running], timeout=60)
            assert running.done()
            assert most <= 4
            await putting
            await asyncio.sleep(1)
            assert not cluster.ensemble.tree.nodes["/zms/jobs/locks"].children
            assert await jobs.size() == 20 - finished
            return finished

    ends = [run_virtual(partial(main, number, turns)) for number in (1, 2, 4, 8) for turns in range(6)]
    assert 0 <= min(ends) < max(ends) < 20, "some messages had been handled, and some had not"


@pytest.mark.parametrize("together", [1, 2])
def test_a_taker_that_arrives_while_messages_of_a_bundle_are_returned_gets_the_next_one_at_once(together: int) -> None:
    """Its session claims nothing meanwhile, because the messages in the return come before all others."""

    async def take(delay: float) -> float:
        near = partial(float, 0.01)
        cluster = Cluster(Ensemble(Random(1), delays=Delays(near, near, near, near)), 1)
        async with cluster.connect() as session, AsyncExitStack() as stack:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=4))
            await jobs.put_many([b"1", b"2", b"3", b"4"])
            tx = await stack.enter_async_context(session.transaction())
            for _ in range(together):
                assert await tx.take(jobs, timeout=5)
            await asyncio.sleep(delay)
            began = asyncio.get_running_loop().time()
            other = await stack.enter_async_context(session.transaction())
            assert await other.take(jobs, timeout=60)
            return asyncio.get_running_loop().time() - began

    async def main() -> list[float]:
        return [await take(number / 200) for number in range(40)]

    assert max(run_virtual(main)) < 1


@pytest.mark.parametrize("bundle", [1, 4])
def test_waiting_takers_get_the_messages_that_another_transaction_of_their_session_returns(bundle: int) -> None:
    async def main() -> float:
        async with simulated() as cluster, cluster.connect() as session, AsyncExitStack() as stack:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=bundle))
            await jobs.put_many([b"1", b"2", b"3", b"4"])
            first = await stack.enter_async_context(session.transaction(autocommit=False))
            taken = 0
            while taken < 4:
                taken += len(await first.take_many(jobs, 4, timeout=5))
            others = [await stack.enter_async_context(session.transaction()) for _ in range(4)]
            waiting = asyncio.gather(*(other.take(jobs, timeout=600) for other in others))
            await asyncio.sleep(60)
            assert not waiting.done()
            began = asyncio.get_running_loop().time()
            await first.rollback(delay=0)
            assert all(await waiting)
            return asyncio.get_running_loop().time() - began

    assert run_virtual(main) < 1
