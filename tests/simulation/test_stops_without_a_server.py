"""Programs that stop while no server answers, within the time that `deploy/` and the pages give them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import run_virtual, simulated

if TYPE_CHECKING:
    from aiozkqueue.testing.simulator import Cluster

#: Of the listener and of the session, seconds, and the time that a stop may take beyond their sum: a supervisor gives
#: 45 s for the defaults of 25 s and 10 s.
DRAIN, SESSION, MARGIN = 25.0, 10.0, 5.0


def go_silent(cluster: Cluster) -> None:
    """Let no server answer from now on."""
    for server in cluster.ensemble.servers:
        cluster.ensemble.stop(server)


async def stopping(policy: zq.Policy, handling: float, silent_at: float, stop_at: float) -> float:
    """Return the seconds from the stop of a listener to the end of its session."""
    async with simulated() as cluster:
        loop = asyncio.get_running_loop()

        async def handle(delivery: zq.Delivery[bytes]) -> None:
            await asyncio.sleep(handling)
            delivery.put("results", delivery.body)

        async with cluster.connect(session_timeout=SESSION) as session:
            jobs = session.queue("jobs", policy=policy)
            listener = session.listener(jobs, handle, concurrency=2, drain_timeout=DRAIN)
            serving = asyncio.create_task(listener.run())
            await asyncio.sleep(1)
            loop.call_later(silent_at, go_silent, cluster)
            loop.call_later(stop_at, listener.stop)
            putting = [asyncio.create_task(jobs.put(b"%d" % number)) for number in range(3)]
            began = loop.time() + stop_at
            await asyncio.wait([serving])
        lasted = loop.time() - began
        await asyncio.wait(putting)
        return lasted


@pytest.mark.parametrize("handling", [0.0, 10.0, 1000.0])
@pytest.mark.parametrize("policy", [zq.AtLeastOnce(), zq.ConsumeTimes(3)], ids=["AtLeastOnce", "ConsumeTimes"])
def test_a_listener_and_its_session_end_within_the_drain_and_one_session_timeout(
    policy: zq.Policy, handling: float
) -> None:
    for stop_at in (0.001, 5.0):
        for silent_at in (0.0, 0.002, 0.004, 0.006, 0.008, 0.01, 0.1, 1.0, 9.0, 15.0, 24.0, 29.9):
            lasted = run_virtual(partial(stopping, policy, handling, silent_at, stop_at))
            assert lasted <= DRAIN + SESSION + MARGIN, f"silent at {silent_at} s, stopped at {stop_at} s"
