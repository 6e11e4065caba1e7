"""Suspended machines, whose monotonic time stops while ZooKeeper's time and their date continue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.queue.claim.discovery import LONGEST_SLEEP
from aiozkqueue.testing.simulator import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster
from aiozkqueue.testing.simulator.loop import LoopClock
from tests.simulation.test_clock_steps import AT_ONCE, HOUR, fail, lease, put_later, wait

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing.simulator.cluster import Cluster

pytestmark = pytest.mark.timeout(120)


class LaptopClock(LoopClock):
    """A clock whose date jumps forward when the machine continues."""

    suspended = 0.0

    def time(self) -> float:
        return super().time() + self.suspended


def suspend(cluster: Cluster, clock: LaptopClock, seconds: float, *, ends_session: bool) -> None:
    """Suspend the machine of the session ``laptop`` for a time that its event loop does not notice."""
    clock.suspended += seconds
    cluster.ensemble.offset += seconds
    if ends_session:
        cluster.expire("laptop")


@pytest.mark.parametrize("ends_session", [False, True])
@pytest.mark.parametrize("seconds", [8.0, 2 * HOUR])
@pytest.mark.parametrize("make", [put_later, lease, fail])
def test_a_delay_that_begins_after_a_suspension_does_not_end_early(
    make: Callable[[zq.QueueSession, float], Awaitable[None]], seconds: float, *, ends_session: bool
) -> None:
    async def main() -> None:
        clock, loop = LaptopClock(), asyncio.get_running_loop()
        cluster = make_cluster(clock=clock)
        async with cluster.connect(name="laptop") as session:
            await session.queue("jobs").put(b"before")
            assert await wait(session, 1) is not None
            suspend(cluster, clock, seconds, ends_session=ends_session)
            began = loop.time()
            await make(session, 30)
            assert await wait(session, HOUR) is not None
            assert loop.time() - began == pytest.approx(30, abs=AT_ONCE)

    run_virtual(main, limit=3 * HOUR)


@pytest.mark.parametrize("ends_session", [False, True])
@pytest.mark.parametrize("default", [False, True])
def test_a_message_put_after_a_suspension_has_its_whole_lifetime(*, default: bool, ends_session: bool) -> None:
    async def main() -> None:
        clock = LaptopClock()
        cluster = make_cluster(clock=clock)
        async with cluster.connect(name="laptop") as session:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(ttl=100 if default else None))
            await jobs.put(b"before")
            assert await wait(session, 1) is not None
            suspend(cluster, clock, 2 * HOUR, ends_session=ends_session)
            await (jobs.put(b"after") if default else jobs.put(b"after", ttl=100))
            await asyncio.sleep(99)
            assert await wait(session, 0) is not None

    run_virtual(main)


@pytest.mark.parametrize("make", [put_later, lease, fail])
def test_an_idle_consumer_notices_that_a_delay_has_ended_during_its_suspension(
    make: Callable[[zq.QueueSession, float], Awaitable[None]],
) -> None:
    async def main() -> None:
        clock, loop = LaptopClock(), asyncio.get_running_loop()
        cluster = make_cluster(clock=clock)
        async with cluster.connect(name="server") as other, cluster.connect(name="laptop") as session:
            await make(other, HOUR)
            taking = asyncio.ensure_future(wait(session, 10 * HOUR))
            await asyncio.sleep(100)
            suspend(cluster, clock, 2 * HOUR, ends_session=False)
            began = loop.time()
            assert await taking is not None
            assert loop.time() - began <= LONGEST_SLEEP + AT_ONCE

    run_virtual(main, limit=3 * HOUR)


@pytest.mark.parametrize("lifetime", [False, True])
def test_a_virtual_machine_that_was_paused_with_its_date_measures_the_time_in_its_next_session(
    *, lifetime: bool
) -> None:
    async def main() -> None:
        cluster, loop = make_cluster(), asyncio.get_running_loop()
        async with cluster.connect(name="guest") as session:
            jobs = session.queue("jobs")
            await jobs.put(b"before")
            assert await wait(session, 1) is not None
            cluster.ensemble.offset += 2 * HOUR
            cluster.expire("guest")
            await asyncio.sleep(5)  # the machine has a new session
            began = loop.time()
            await (jobs.put(b"after", ttl=30) if lifetime else jobs.put(b"after", delay=30))
            message = await wait(session, 29 if lifetime else 60)
            assert message is not None
            assert lifetime or loop.time() - began == pytest.approx(30, abs=AT_ONCE)

    run_virtual(main, limit=3 * HOUR)


@pytest.mark.parametrize("ends_session", [False, True])
@pytest.mark.parametrize("seconds", [0.0, 2 * HOUR])
def test_the_figures_after_a_suspension_include_its_duration(seconds: float, *, ends_session: bool) -> None:
    """The session has not written since, so it has not measured ZooKeeper's time again."""

    async def main() -> None:
        clock = LaptopClock()
        cluster = make_cluster(clock=clock)
        async with cluster.connect(name="laptop") as session:
            jobs = session.queue("jobs")
            await fail(session, HOUR)
            later = await jobs.put(b"later", delay=HOUR)
            suspend(cluster, clock, seconds, ends_session=ends_session)
            await asyncio.sleep(5)
            over = seconds > 0
            stats, state = await jobs.stats(), await jobs.state(later)
            assert (stats.waiting, stats.retrying, stats.scheduled) == ((2, 0, 0) if over else (0, 1, 1))
            assert (stats.oldest is not None) is over
            assert state.status is (zq.Status.WAITING if over else zq.Status.DELAYED)
            assert [message.due is None for message in await jobs.peek(2)] == [over, over]

    run_virtual(main)
