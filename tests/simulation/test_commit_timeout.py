"""A transaction with a commit timeout ends in time, even if no server answers."""

from __future__ import annotations

import asyncio

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster


@pytest.mark.parametrize("silent", [0.0, 1.0])
def test_the_block_of_a_transaction_ends_within_its_commit_timeout(silent: float) -> None:
    """The servers stop right before the commit, or so long before it that the client has noticed."""

    async def main() -> float:
        cluster = make_cluster(seed=0)
        async with cluster.connect(session_timeout=2) as session:
            jobs = session.queue("jobs")
            await jobs.put(b"1")
            loop = asyncio.get_running_loop()
            for server in cluster.ensemble.servers:
                cluster.ensemble.stop(server)
            await asyncio.sleep(silent)
            began = loop.time()
            with pytest.raises((zq.NotCommittedError, zq.OutcomeUnknownError)):
                async with session.transaction(commit_timeout=5) as tx:
                    tx.put(jobs, b"2")
            took = loop.time() - began
            for server in cluster.ensemble.servers:
                server.up = True
        return took

    assert run_virtual(main) == pytest.approx(5, abs=0.5)


@pytest.mark.parametrize("wrong", [-1, float("nan")])
def test_an_invalid_commit_timeout_is_refused(wrong: float) -> None:
    async def main() -> None:
        cluster = make_cluster(seed=0)
        async with cluster.connect() as session:
            with pytest.raises(zq.InvalidOptionError, match="commit_timeout"):
                session.transaction(commit_timeout=wrong)

    run_virtual(main)


def test_a_commit_timeout_is_refused_if_the_block_does_not_commit() -> None:
    async def main() -> None:
        cluster = make_cluster(seed=0)
        async with cluster.connect() as session:
            with pytest.raises(zq.InvalidOptionError, match=r"give `tx.commit` a timeout"):
                session.transaction(autocommit=False, commit_timeout=5)

    run_virtual(main)
