"""Commits and purges of messages of a bundle while the history of the queue is turned on and off again."""

from __future__ import annotations

import asyncio

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import run_virtual, simulated
from tests.simulation.between import Between

#: Seconds of a network message between a session and the servers.
FAR = 0.001
#: The steps of `FAR` after which the commits begin, while the session turns the history on.
MOMENTS = 40


async def outcomes() -> set[zq.Outcome]:
    """Commit two messages of a bundle while the history is turned on, and a third one after it is turned off."""
    found: set[zq.Outcome] = set()
    async with simulated() as cluster:
        cluster.ensemble.delays.network = lambda: FAR
        async with cluster.connect() as session:
            for moment in range(MOMENTS):
                jobs = session.queue(f"jobs{moment}")
                await jobs.configure(zq.QueueConfig(bundle=4))
                await jobs.put_many([b"0", b"1", b"2", b"3"])
                units = [zq.Transaction(session._runtime) for _ in range(4)]
                for unit in units:
                    assert await unit.take(jobs, timeout=1) is not None
                turned_on = asyncio.create_task(jobs.configure(zq.QueueConfig(history=zq.History())))
                await asyncio.sleep(moment * FAR)
                # The second commit waits for the first.
                first = asyncio.create_task(units[0].commit())
                await asyncio.sleep(FAR / 8)
                await asyncio.gather(first, units[1].commit(), turned_on)
                await jobs.configure(zq.QueueConfig(history=False))
                await units[2].commit(timeout=60)
                await units[3].commit(timeout=60)
                found |= {unit.outcome for unit in units}
    return found


def test_a_commit_after_the_history_was_on_for_a_while_is_sent() -> None:
    assert run_virtual(outcomes, limit=1000) == {zq.Outcome.COMMITTED}


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "read by another task"])
def test_a_purge_records_each_message_that_it_removes_after_the_history_was_turned_on(
    known: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """The history is turned on between two requests of the purge, or not at all after the last one."""

    async def main() -> bool:
        left = 0
        async with simulated() as cluster, cluster.connect() as session, cluster.connect() as operator:
            jobs, other = session.queue("jobs"), operator.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=4))
            await jobs.put_many([b"0", b"1", b"2", b"3"])

            async def turn_on() -> None:
                nonlocal left
                await other.configure(zq.QueueConfig(history=zq.History()))
                left = await other.size()
                if known:
                    await jobs.configuration()

            between = Between(session, number, turn_on)
            assert await jobs.purge() == 4
            assert await jobs.size() == 0
            if between.reached:
                assert (await other.stats()).records == left, number
            return between.reached

    number = 1
    while run_virtual(main, limit=100):
        number += 1
    assert number > 5
