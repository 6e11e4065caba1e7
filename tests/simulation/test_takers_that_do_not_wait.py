"""Takers that do not wait while another taker of the session waits, and takers that are cancelled during requests."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.queue.claim.claim_batches import ClaimBatches
from aiozkqueue.queue.state.snapshot import NO_REVISION
from aiozkqueue.session.internals import work_of
from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.testing.simulator import Cluster, Delays, Ensemble

if TYPE_CHECKING:
    from aiozkqueue.queue.claim.claimer import ClaimResult


@pytest.mark.timeout(20)
def test_a_take_that_found_nothing_while_another_one_waits_causes_no_more_listings() -> None:
    async def main() -> int:
        async with simulated() as cluster, cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.put(b"the only one")
            async with session.transaction() as asking, session.transaction() as waiting:
                assert await asking.take(jobs, timeout=5) is not None
                taking = asyncio.create_task(waiting.take(jobs, timeout=60))
                await asyncio.sleep(30)
                assert await asking.take(jobs, timeout=0) is None
                before = cluster.ensemble.arrivals
                assert await taking is None
                return cluster.ensemble.arrivals - before

    assert run_virtual(main) < 10


@pytest.mark.parametrize("prefetch", [1, 32])
def test_a_loop_until_idle_gets_a_message_it_released_again_however_long_it_held_it(prefetch: int) -> None:
    """While the loop held the message, its prefetch had ended without messages."""

    async def main() -> list[int]:
        attempts: list[int] = []
        async with simulated() as cluster, cluster.connect() as session:
            await session.queue("jobs").put_many([b"handled"] * 5 + [b"given back"])
            async with session.queue("jobs").consume(prefetch=prefetch, until_idle=0) as deliveries:
                async for delivery in deliveries:
                    if delivery.body == b"given back":
                        attempts.append(delivery.attempt)
                        await asyncio.sleep(1)
                        if delivery.attempt < 3:
                            await delivery.rollback(delay=0)
            assert await session.queue("jobs").size() == 0
        return attempts

    assert run_virtual(main) == [1, 2, 3]


@pytest.mark.filterwarnings("ignore::aiozkqueue.errors.ImplicitSettleWarning")
@pytest.mark.parametrize("prefetch", [1, 32])
@pytest.mark.parametrize("how", ["forced open", "its session over"])
def test_a_loop_until_idle_gets_a_message_it_could_not_commit_again(how: str, prefetch: int) -> None:
    """While the last commits are in progress, the queue is not yet known to be empty."""

    async def main() -> tuple[int, int]:
        shown = 0
        async with simulated() as cluster, cluster.connect() as session, cluster.connect() as operator:
            jobs = session.queue("jobs")
            await jobs.put_many([b"handled"] * 5 + [b"lost"])
            async with jobs.consume(prefetch=prefetch, until_idle=0) as deliveries:
                async for delivery in deliveries:
                    if delivery.body == b"lost":
                        shown += 1
                        await asyncio.sleep(1)  # a request for more messages meanwhile finds none
                        if shown == 1 and how == "forced open":
                            assert await operator.queue("jobs").admin.release_claims() == 1
                        elif shown == 1:
                            cluster.ensemble.expire(session._runtime.zookeeper.session_id)
            return shown, await jobs.size()

    assert run_virtual(main) == (2, 0)


@pytest.mark.parametrize("prefetch", [1, 2, 32])
@pytest.mark.parametrize("how", ["put at once", "put by another", "put by the commit", "committed at once"])
def test_a_loop_until_idle_gets_the_messages_that_its_body_puts(how: str, prefetch: int) -> None:
    """This holds however quick the body is. The prefetch that ran meanwhile did not see the new messages."""

    async def main() -> tuple[int, int]:
        shown = 0
        async with simulated() as cluster, cluster.connect() as session, cluster.connect() as other:
            jobs = session.queue("jobs")
            await jobs.put_many([b"job"] * 6)
            async with jobs.consume(prefetch=prefetch, until_idle=0) as deliveries:
                async for delivery in deliveries:
                    shown += 1
                    await asyncio.sleep(0.01)
                    if 6 <= shown < 10:
                        if how == "put at once":
                            await jobs.put(b"job")
                        elif how == "put by another":
                            await other.queue("jobs").put(b"job")
                        else:
                            delivery.put(jobs, b"job")
                        if how == "committed at once":
                            await delivery.commit()
            return shown, await jobs.size()

    assert run_virtual(main) == (10, 0)


@pytest.mark.timeout(60)
def test_a_take_cancelled_while_more_batches_are_pending_releases_the_first_batch() -> None:
    async def main(seed: int) -> bool:
        random = Random(seed)

        def slowly() -> float:
            return random.random() * 0.02

        cluster = Cluster(Ensemble(random, delays=Delays(slowly, slowly, slowly, slowly)), seed)
        async with cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=1))
            await jobs.put_many([b"job"] * 300)
            cut_off = False
            async with session.transaction(autocommit=False) as tx:
                with suppress(TimeoutError):
                    async with asyncio.timeout(random.random() * 0.2):
                        await tx.take_many(jobs, 300, timeout=10)
                cut_off = not list(work_of(tx).claims)
                await tx.rollback(delay=0)
            async with session.transaction() as tx:
                assert len(await tx.take_many(jobs, 300, timeout=10)) == 300, seed
            return cut_off

    cut_off = [run_virtual(partial(main, seed)) for seed in range(16, 32)]
    assert 0 < sum(cut_off) < 16, "the take was cancelled before and after the first batch"


def test_a_take_without_waiting_gets_all_messages_that_a_cancelled_take_is_releasing() -> None:
    """The session is alone, and more messages wait than one listing claims.

    Whenever the earlier take ends, all of them are returned.
    """

    async def main(millisecond: int) -> int:
        def slowly() -> float:
            return 0.005

        ensemble = Cluster(Ensemble(Random(1), delays=Delays(slowly, slowly, slowly, slowly)), 1)
        async with ensemble.connect() as session:
            jobs = session.queue("jobs")
            await jobs.put_many([b"job"] * 600)
            async with session.transaction(autocommit=False) as tx:
                with suppress(TimeoutError):
                    async with asyncio.timeout(millisecond / 1000):
                        await tx.take_many(jobs, 600, timeout=10)
                await tx.rollback(delay=0)
            async with session.transaction() as tx:
                return len(await tx.take_many(jobs, 600, timeout=0))

    assert {moment: run_virtual(partial(main, moment)) for moment in range(1, 100, 4)} == dict.fromkeys(
        range(1, 100, 4), 600
    )


def test_claims_repeated_after_a_configuration_change_do_not_use_up_the_lock_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A session may hold some 4,000 locks. If it counted repeated claims twice, it would stop taking messages."""

    async def main() -> int:
        async with simulated() as cluster, cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.put_many([b"job"] * 128)
            changes = iter(range(64))

            async def claim_if_current(batches: ClaimBatches, pending: Any) -> ClaimResult:
                changed = next(changes, None) is not None
                return await claim(batches, pending._replace(revision=NO_REVISION) if changed else pending)

            claim = ClaimBatches._claim_if_current
            monkeypatch.setattr(ClaimBatches, "_claim_if_current", claim_if_current)
            async with session.transaction() as tx:
                return len(await tx.take_many(jobs, 128, timeout=60))

    assert run_virtual(main) == 128


def test_a_take_of_many_does_not_wait_for_more_until_its_messages_expire_however_fast_they_arrive() -> None:
    near = partial(float, 0.001)

    async def main() -> float:
        cluster = Cluster(Ensemble(Random(1), delays=Delays(near, near, near, near)), 1)
        async with cluster.connect() as session, cluster.connect() as other:
            loop = asyncio.get_running_loop()
            end = loop.time() + 2

            async def produce() -> None:
                while loop.time() < end:
                    await other.queue("jobs").put(b"", ttl=0.3)

            async with asyncio.TaskGroup() as group:
                for _ in range(2):
                    group.create_task(produce())
                async with session.transaction() as tx:
                    began = loop.time()
                    assert await tx.take_many(session.queue("jobs"), 5000, timeout=5)
                    return loop.time() - began

    assert run_virtual(main) < 1
