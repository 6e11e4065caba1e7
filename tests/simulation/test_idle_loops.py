"""Loops that end when their queue is idle, and that put messages into the same queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.testing.simulator.requests import Fault

if TYPE_CHECKING:
    from aiozkqueue.testing.simulator.cluster import Cluster
    from aiozkqueue.testing.simulator.requests import Request
    from aiozkqueue.testing.simulator.server import ServerConnection


def handled(
    until_idle: float, *, prefetch: int, bundle: int, fault: Fault | None = None, delay: float = 0.0
) -> list[bytes]:
    """Return the messages of a loop that puts a second message with its first commit, into which a fault is injected.

    After that, requests and answers take ``delay`` seconds each.
    """

    async def main() -> list[bytes]:
        bodies = list[bytes]()
        async with simulated() as cluster:
            cluster.ensemble.delays.network = lambda: delay if bodies else 0.0
            await loop(cluster, bodies)
        return bodies

    async def loop(cluster: Cluster, bodies: list[bytes]) -> None:
        async with cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(bundle=bundle))
            await jobs.put(b"first")
            faults = [fault]

            def judge(_: ServerConnection, request: Request) -> Fault | None:
                return faults.pop() if faults and b"second" in repr(request).encode() else None

            cluster.ensemble.judge = judge
            async with jobs.consume(until_idle=until_idle, prefetch=prefetch) as deliveries:
                async for delivery in deliveries:
                    bodies.append(delivery.body)
                    if delivery.body == b"first":
                        delivery.put(jobs, b"second")
            assert not faults

    return run_virtual(main)


@pytest.mark.parametrize("fault", [*Fault])
@pytest.mark.parametrize("bundle", [1, 64])
@pytest.mark.parametrize("prefetch", [1, 2, 32])
def test_a_loop_delivers_the_message_of_its_own_commit_however_late_that_is_answered(
    prefetch: int, bundle: int, fault: Fault
) -> None:
    for until_idle in (0, 0.5, 20):
        assert handled(until_idle, prefetch=prefetch, bundle=bundle, fault=fault) == [b"first", b"second"]


@pytest.mark.parametrize("bundle", [1, 64])
@pytest.mark.parametrize("prefetch", [2, 32])
def test_a_loop_delivers_the_message_of_a_commit_that_is_answered_just_before_the_queue_seems_idle(
    prefetch: int, bundle: int
) -> None:
    for hundredths in range(
        45, 80
    ):  # the commit is answered after 0.2 s, and the second message is claimed 0.4 s later
        until_idle = hundredths / 100
        bodies = handled(until_idle, prefetch=prefetch, bundle=bundle, delay=0.1)
        assert bodies == [b"first", b"second"], until_idle
