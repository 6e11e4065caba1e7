"""Takers that look once, beside one of the same session that waits."""

from __future__ import annotations

import asyncio

import pytest

from aiozkqueue.testing import run_virtual, simulated


@pytest.mark.timeout(20)
def test_who_has_looked_behind_one_that_waits_is_not_looked_for_again() -> None:
    async def main() -> int:
        async with simulated() as cluster, cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.put(b"the only one")
            async with session.begin() as asking, session.begin() as waiting:
                assert await asking.take(jobs, timeout=5) is not None
                taking = asyncio.create_task(waiting.take(jobs, timeout=60))
                await asyncio.sleep(30)
                assert await asking.take(jobs, timeout=0) is None
                before = cluster.ensemble.arrivals
                assert await taking is None
                return cluster.ensemble.arrivals - before

    assert run_virtual(main) < 10
