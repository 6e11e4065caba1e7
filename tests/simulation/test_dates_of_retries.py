"""A scheduled retry is due at its date, even if the estimate of ZooKeeper's time changes while the retry is stored."""

from __future__ import annotations

import asyncio

import pytest

import aiozkqueue as zq
from aiozkqueue.session import delivery
from aiozkqueue.session.delivery import retry_delay
from aiozkqueue.testing import run_virtual, simulated


@pytest.mark.parametrize("bodies", [[b"0"], [b"%d" % number for number in range(40)]], ids=["single item", "bundle"])
def test_a_retry_is_not_early_if_its_delay_was_computed_by_a_better_estimate(
    monkeypatch: pytest.MonkeyPatch, bodies: list[bytes]
) -> None:
    """The estimate is a lower bound, and after a reconnection it may be lower by a round trip than before."""

    async def main() -> None:
        async with simulated() as cluster, cluster.connect(session_timeout=6) as session:
            jobs, loop = session.queue("jobs"), asyncio.get_running_loop()
            tries: list[float] = []

            async def handle(message: zq.Delivery[bytes]) -> None:
                if message.body == b"0":
                    tries.append(loop.time())
                    if message.attempt == 1:
                        raise zq.Retry(schedule=[2])

            put = loop.time()
            await jobs.put_many(bodies)
            async with session.listener(jobs, handle):
                await asyncio.sleep(4)
            first, second = tries
            assert first < put + 1
            assert put + 2 <= second < put + 2.5

    def better(error: zq.Retry, attempt: int, due: int, now: int) -> float | None:
        return retry_delay(error, attempt, due, now + 200)

    monkeypatch.setattr(delivery, "retry_delay", better)
    run_virtual(main, limit=200)


def test_a_retry_is_not_early_if_the_clock_of_zookeeper_changes_with_its_leader() -> None:
    """The date has passed by the measurement from before, and has not by the clock of the new leader."""

    async def main() -> None:
        async with simulated(servers=3) as cluster, cluster.connect(session_timeout=6) as session:
            jobs, ensemble = session.queue("jobs"), cluster.ensemble
            tries: list[int] = []

            async def handle(message: zq.Delivery[bytes]) -> None:
                tries.append(ensemble.now())
                if message.attempt == 1:
                    await asyncio.sleep(2)
                    ensemble.offset -= 60
                    ensemble.elect()
                    await asyncio.sleep(3)
                    raise zq.Retry(schedule=[0.5])

            put = ensemble.now()
            await jobs.put(b"0")
            async with session.listener(jobs, handle):
                await asyncio.sleep(90)
            assert len(tries) == 2
            assert tries[1] >= put + 500

    run_virtual(main, limit=200)


def test_a_delay_is_not_shorter_on_a_slow_network() -> None:
    """The session knows ZooKeeper's time only within the time of a reply."""

    async def main() -> None:
        async with simulated() as cluster:
            cluster.ensemble.delays.network = lambda: 0.3
            async with cluster.connect() as session:
                jobs = session.queue("jobs")
                await jobs.put(b"0")
                async with session.transaction(autocommit=False) as tx:
                    assert await tx.take(jobs, timeout=10) is not None
                    await tx.rollback(delay=1)
                [due] = [path for path in cluster.ensemble.tree.nodes if path.startswith("/zms/jobs/due/")]
                released = cluster.ensemble.tree.nodes[due].ctime
                assert int(due.rpartition("/")[2].partition("-")[0]) >= released + 1000

    run_virtual(main, limit=200)
