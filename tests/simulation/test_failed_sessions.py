"""A session whose task has failed by a defect: all waiting calls raise the error, and the locks are released."""

from __future__ import annotations

import asyncio

import pytest

import aiozkqueue as zq
from aiozkqueue.schedule import Scheduler
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster


async def fail() -> None:
    msg = "a defect"
    raise RuntimeError(msg)


@pytest.mark.parametrize("service", ["listener", "scheduler"])
def test_the_block_of_a_service_raises_the_error_and_other_sessions_get_the_messages(service: str) -> None:
    async def main() -> None:
        cluster = make_cluster(seed=0)
        async with cluster.connect() as other, cluster.connect() as session:
            await other.queue("jobs").put(b"1")
            held = await session.transaction(autocommit=False).__aenter__()
            assert await held.take(session.queue("jobs"), timeout=5) is not None

            async def ignore(_: zq.Delivery[bytes]) -> None:
                pass

            running = Scheduler(session) if service == "scheduler" else session.listener(session.queue("x"), ignore)
            with pytest.raises(zq.SessionClosedError, match="failed"):
                async with running:
                    core_of(session).tasks.spawn(fail, name="with a defect")
                    await asyncio.sleep(3600)
            async with other.transaction() as tx:
                assert await tx.take(other.queue("jobs"), timeout=60) is not None

    run_virtual(main)
