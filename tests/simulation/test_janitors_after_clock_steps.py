"""A clean-up with the date of a clock that was ahead does not keep sessions from cleaning."""

from __future__ import annotations

import asyncio

import aiozkqueue as zq
from aiozkqueue.operations.janitor import CHECK_EVERY, Janitor
from aiozkqueue.session.internals import core_of, state_of
from aiozkqueue.testing.simulator import run_virtual
from aiozkqueue.testing.simulator.cluster import Cluster, make_cluster

YEAR = 365 * 24 * 3600.0


async def size_after_cleaning(cluster: Cluster) -> int:
    """Let one message expire; return the size after the janitor of a new session has had time to clean."""
    async with cluster.connect() as session:
        jobs = session.queue("jobs")
        await jobs.configure(zq.QueueConfig(clean_every=CHECK_EVERY))
        await jobs.put(b"x", ttl=1)
        janitor = Janitor(core_of(session))
        janitor.follow(state_of(jobs))
        core_of(session).tasks.spawn(janitor.run, name="janitor")
        await asyncio.sleep(4 * CHECK_EVERY)
        return await jobs.size()


def test_a_queue_is_cleaned_after_the_clock_of_its_last_clean_up_was_set_back() -> None:
    async def main() -> None:
        cluster = make_cluster()
        assert await size_after_cleaning(cluster) == 0
        cluster.ensemble.offset += YEAR
        assert await size_after_cleaning(cluster) == 0
        cluster.ensemble.offset -= YEAR
        assert await size_after_cleaning(cluster) == 0

    run_virtual(main)
