"""A pass of the janitor does not reassign messages of its own node, so that the nodes take turns."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

import aiozkqueue as zq
from aiozkqueue.operations.janitor import Janitor
from aiozkqueue.session.internals import core_of, state_of
from aiozkqueue.testing import run_virtual, simulated

EVERY = 10.0
STICKY = zq.QueueConfig(affinity="producer", reap_after=0.001, reap_every=EVERY)


def _clean(session: zq.QueueSession) -> None:
    """Run a janitor, because simulated sessions have none."""
    janitor = Janitor(core_of(session))
    janitor.follow(state_of(session.queue("jobs")))
    core_of(session).tasks.spawn(janitor.run, name="janitor")


@pytest.mark.parametrize("seed", range(8))
def test_a_session_of_another_node_reassigns_messages_despite_many_sessions_of_their_node(seed: int) -> None:
    async def main() -> None:
        async with simulated(seed=seed) as cluster, AsyncExitStack() as stack:
            producers = [
                await stack.enter_async_context(cluster.connect(name=f"producer-{number}", node="a"))
                for number in range(12)
            ]
            other = await stack.enter_async_context(cluster.connect(name="other", node="b"))
            await producers[0].queue("jobs").configure(STICKY)
            for session in (*producers, other):
                await session.queue("jobs").put(b"x")
                _clean(session)
            await asyncio.sleep(4.5 * EVERY)  # the first check creates the record, the second begins a pass
            # The messages of the other node stay bound to it, and so do messages beyond the limit of one pass.
            assert (await other.queue("jobs").stats()).bound <= 1 + len(producers) - 10

    run_virtual(main, limit=1000)


def test_a_single_node_keeps_its_messages() -> None:
    async def main() -> None:
        async with simulated() as cluster, cluster.connect(node="a") as first, cluster.connect(node="a") as second:
            await first.queue("jobs").configure(STICKY)
            await first.queue("jobs").put(b"x")
            await second.queue("jobs").put(b"y")
            _clean(first)
            _clean(second)
            await asyncio.sleep(10 * EVERY)
            assert await second.queue("jobs").admin.reap() == 0
            assert (await first.queue("jobs").stats()).bound == 2

    run_virtual(main, limit=1000)
