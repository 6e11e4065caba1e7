"""How much a loop and a listener prefetch: enough to be always busy, and no more than they need."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.testing.simulator import Cluster, Delays, Ensemble

#: Seconds for the way from a client to its server, or back.
WAY = 0.005


def distant(way: float = WAY) -> Cluster:
    """Return a cluster with distant servers, in which everything else takes no time."""
    return Cluster(Ensemble(Random(0), delays=Delays(lambda: way, lambda: 0, lambda: 0, lambda: 0)), 0)


async def round_trips(jobs: zq.Queue[bytes]) -> float:
    """Consume 2,000 messages in a loop, and return the duration in round trips."""
    shown, begun = 0, asyncio.get_running_loop().time()
    async with jobs.consume(prefetch=32) as deliveries:
        async for _ in deliveries:
            shown += 1
            if shown == 2000:
                break
    return (asyncio.get_running_loop().time() - begun) / (2 * WAY)


def test_a_loop_requests_the_next_messages_while_it_waits_for_the_first() -> None:
    """Two halves of 32 messages take the time of one request. In sequence, they would take twice as long."""

    async def main() -> float:
        async with distant().connect() as session:
            jobs = session.queue("jobs")
            await jobs.put_many([b"job"] * 2000)
            return await round_trips(jobs)

    assert run_virtual(main) < 1.3 * 2000 / 32


def test_a_loop_continues_with_the_messages_of_a_bundle_while_a_commit_about_it_is_in_progress() -> None:
    """Commits about one bundle are sequential.

    A loop that waited for the previous 32 messages would take 103 round trips.
    """

    async def main() -> float:
        async with distant().connect() as session:
            jobs = session.queue("jobs")
            await jobs.put(b"job")
            await jobs.configure(zq.QueueConfig(bundle=64))
            await jobs.put_many([b"job"] * 1999)
            return await round_trips(jobs)

    assert run_virtual(main) < 2000 / 32


@pytest.mark.parametrize("bundle", [1, 64])
def test_a_listener_requests_a_message_as_soon_as_a_slot_is_free(bundle: int) -> None:
    """It does not wait for its earlier requests."""

    async def main() -> float:
        handled = 0

        async def handler(_: object) -> None:
            nonlocal handled
            handled += 1
            await asyncio.sleep(WAY * (handled % 16) / 4)
            if handled == 2000:
                listener.stop()

        async with distant().connect() as session:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=bundle))
            await jobs.put_many([b"job"] * 2000)
            listener = session.listener(jobs, handler, concurrency=64)
            begun = asyncio.get_running_loop().time()
            await listener.run()
            return asyncio.get_running_loop().time() - begun

    # A message takes a claim, a handler and a commit: two requests, and on average about twice the way. A slot that
    # waited for the answers to the requests of other slots would take half a request longer.
    assert run_virtual(main) < 1.18 * 2000 / 64 * 6 * WAY


@pytest.mark.parametrize("pause", [0.05, 1.0])
@pytest.mark.parametrize("singles", [0, 3])
def test_a_loop_that_becomes_slow_claims_few_of_the_next_messages(pause: float, singles: int) -> None:
    """Otherwise the outstanding requests of the fast period would hold messages as long as the loop's body takes."""

    async def main() -> int:
        async with simulated() as cluster, cluster.connect() as session, cluster.connect() as other:
            jobs, theirs = session.queue("jobs"), other.queue("jobs")
            used_up, shown = asyncio.Event(), 0

            async def put_more() -> None:
                await used_up.wait()
                for _ in range(singles):
                    await asyncio.sleep(pause)
                    await theirs.put(b"quick")
                await asyncio.sleep(pause)
                await theirs.put_many([b"slow"] * 40)

            await jobs.put_many([b"quick"] * 200)
            putting = asyncio.create_task(put_more())
            async with jobs.consume(prefetch=32) as deliveries:
                async for delivery in deliveries:
                    if delivery.body == b"slow":
                        break
                    shown += 1
                    if shown == 200:
                        used_up.set()
                await putting
                await asyncio.sleep(1)
                async with other.transaction() as tx:
                    free = await tx.take_many(theirs, 40, timeout=0)
                    await tx.rollback(delay=0)
            return 40 - len(free)

    held = run_virtual(main)
    if pause > 0.1:
        assert held <= 2, "the current message, and one more"
    elif singles:
        assert held <= 3, "and the messages that it finished in the last 100 ms"


def test_claims_pending_for_a_withdrawn_request_are_not_lost() -> None:
    """Whenever the claims arrive, nothing stays locked, and the loop receives every message."""

    async def main(millisecond: int) -> tuple[int, int]:
        cluster, shown = distant(0.001), 0
        async with cluster.connect() as session, cluster.connect() as other:
            jobs, theirs = session.queue("jobs"), other.queue("jobs")
            await jobs.put_many([b"quick"] * 200)
            used_up = asyncio.Event()

            async def put_more() -> None:
                await used_up.wait()
                await asyncio.sleep(millisecond / 1000)
                await theirs.put_many([b"slow"] * 40)

            putting = asyncio.create_task(put_more())
            async with jobs.consume(prefetch=32) as deliveries:
                async for _ in deliveries:
                    shown += 1
                    if shown == 200:
                        used_up.set()
                    if shown == 240:
                        deliveries.stop()
            await putting
            return shown, await theirs.size()

    assert {run_virtual(partial(main, millisecond)) for millisecond in range(120)} == {(240, 0)}
