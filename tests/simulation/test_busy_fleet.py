"""Sessions that drain a deep queue of bundles finish their own bundles, however long their commits take.

A message that a session returns becomes a single item, which needs another lock, read and deletion. Many of these slow
down a busy fleet, and a slower fleet returns more messages. The test runs in virtual time.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

import aiozkqueue as zq
from aiozkqueue.layout import BUNDLE_BITS
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster

MESSAGES, SESSIONS, TASKS, BUNDLE = 12_800, 8, 32, 64


@pytest.mark.parametrize("way", [0.001, 0.05, 0.1])
def test_the_sessions_of_a_busy_fleet_keep_their_bundles(way: float) -> None:
    """The tasks of a session commit together, so the session finishes nothing while their commit is in progress."""

    async def drain() -> int:
        cluster, delay = make_cluster(), 0.0
        cluster.ensemble.delays.network = lambda: delay
        async with AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(cluster.connect()) for _ in range(SESSIONS)]
            await sessions[0].queue("jobs").configure(zq.QueueConfig(bundle=BUNDLE))
            for _ in range(2):  # the first put does not use bundles
                await sessions[0].queue("jobs").put_many([b"x"] * (MESSAGES // 2))
            delay = way
            async with asyncio.TaskGroup() as group:
                for session in sessions:
                    for _ in range(TASKS):
                        group.create_task(take_all(session))
            return await left(sessions[0])

    # At the end, when no bundles are left, a session returns the messages that its tasks do not take at once.
    assert run_virtual(drain) <= 2 * SESSIONS * BUNDLE


async def take_all(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    while True:
        async with session.transaction() as tx:
            if await tx.take(jobs, timeout=5) is None:
                return


async def left(session: zq.QueueSession) -> int:
    """Return the number of messages that have become single items."""
    core = core_of(session)
    paths = core.queue_state("jobs").paths
    stats = [await core.zookeeper.exists(paths.bundle_count(bit, left=True)) for bit in range(BUNDLE_BITS)]
    return sum(stat.version << bit for bit, stat in enumerate(stats) if stat is not None)
