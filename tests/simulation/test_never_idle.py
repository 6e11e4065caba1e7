"""A session that always has candidates still does the work that is due before the next claim.

The tests run in virtual time.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.zookeeper import Delete

#: Seconds between two takes, so that no watch is armed, and the number of takes.
PACE, TAKES = 0.1, 60


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_a_message_whose_backoff_has_ended_is_taken_by_a_session_that_is_never_idle(known: bool) -> None:  # noqa: FBT001 - a case
    """The session learns the end of the backoff from its first listing, or only from a later one."""

    async def main() -> list[bytes]:
        async with simulated() as cluster, cluster.connect() as busy, cluster.connect() as other:
            jobs = await prepared(busy)
            taken: list[bytes] = []
            async with other.transaction() as tx:
                message = await tx.take(other.queue("jobs"))
                assert message is not None
                tx.release(message, delay=2)
                if not known:
                    taken += await take(busy, jobs, 1)
            return taken + await take(busy, jobs, TAKES)

    assert b"first" in run_virtual(main)[:40]


def test_an_entry_that_was_deleted_is_made_again_by_a_session_that_is_never_idle() -> None:
    async def main() -> bool:
        async with simulated() as cluster, cluster.connect() as busy:
            jobs = await prepared(busy)
            await take(busy, jobs, 1)
            core = core_of(busy)
            paths = core.queue_state("jobs").paths
            (entry,) = await core.zookeeper.children(paths.consumers)
            await core.zookeeper.multi([Delete(paths.consumer(entry))])
            core.dispatcher(core.queue_state("jobs"))._candidates.relist()  # the listing shows that it is missing
            await take(busy, jobs, 2)
            return await core.zookeeper.exists(paths.consumer(entry)) is not None

    assert run_virtual(main)


@pytest.mark.parametrize("scheduled", [False, True], ids=["retrying", "scheduled"])
def test_a_session_registers_again_in_a_queue_that_was_deleted_and_created_again(scheduled: bool) -> None:  # noqa: FBT001 - a case
    """After the change of the leader, the session measures the time by a write of its entry, which is gone."""

    async def main() -> tuple[bytes | None, int]:
        async with simulated(servers=3) as cluster, cluster.connect() as session, cluster.connect() as other:
            jobs, theirs = session.queue("jobs"), other.queue("jobs")
            await jobs.put(b"first")
            await take(session, jobs, 1)
            await theirs.admin.delete(force=True)
            await theirs.put(b"second", delay=3 if scheduled else None)
            if not scheduled:
                async with other.transaction() as tx:
                    message = await tx.take(theirs, timeout=10)
                    assert message is not None
                    tx.release(message, delay=3)
            cluster.ensemble.elect()
            await asyncio.sleep(5)
            before = cluster.ensemble.arrivals
            async with session.transaction() as tx:
                message = await tx.take(jobs, timeout=60)
            return None if message is None else message.body, cluster.ensemble.arrivals - before

    body, requests = run_virtual(main, limit=100)
    assert body == b"second"
    assert requests < 200


@pytest.mark.parametrize("change", [zq.QueueConfig(paused=True), zq.QueueConfig(shards=4)], ids=["pause", "shards"])
def test_a_change_of_the_configuration_reaches_a_session_that_is_never_idle(change: zq.QueueConfig) -> None:
    async def main(change: zq.QueueConfig) -> tuple[int, int]:
        async with simulated() as cluster, cluster.connect() as busy, cluster.connect() as other:
            jobs = await prepared(busy)
            before = len(await take(busy, jobs, 5))
            await other.queue("jobs").configure(change)
            return before, len(await take(busy, jobs, 5))

    assert run_virtual(partial(main, change)) == (5, 0 if change.paused else 5)


async def prepared(session: zq.QueueSession) -> zq.Queue[bytes]:
    """Return a queue with more messages than are taken."""
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(bundle=1))
    await jobs.put(b"first")
    for number in range(2 * TAKES):
        await jobs.put(b"%d" % number)
    return jobs


async def take(session: zq.QueueSession, jobs: zq.Queue[bytes], number: int) -> list[bytes]:
    """Take messages one after the other until none is left or the limit is reached; return them."""
    taken: list[bytes] = []
    for _ in range(number):
        async with session.transaction() as tx:
            if (message := await tx.take(jobs)) is not None:
                taken.append(message.body)
        await asyncio.sleep(PACE)
    return taken
