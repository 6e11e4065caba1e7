"""Puts with many new priorities at once: one change of the configuration admits all of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster
from aiozkqueue.testing.simulator.requests import Kind
from aiozkqueue.zookeeper import SetData

if TYPE_CHECKING:
    from aiozkqueue.testing.simulator.requests import Fault, Request
    from aiozkqueue.testing.simulator.server import ServerConnection

PRIORITIES = 40
#: Maximum number of changes: one that admits all priorities, and one for puts that had already begun.
FEW = 3


class Changes:
    """Counts the multis that write the configuration of a queue."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.seen = 0

    def __call__(self, _: ServerConnection, request: Request) -> Fault | None:
        if request.kind is Kind.MULTI:
            self.seen += any(isinstance(each, SetData) and each.path == self._path for each in request.argument)
        return None


@pytest.mark.parametrize("shards", [None, 4])
@pytest.mark.parametrize("delay", [0, 60])
def test_many_new_priorities_are_admitted_in_few_changes(shards: int | None, delay: float) -> None:
    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect() as session:
            jobs = session.queue("jobs")
            if shards is not None:
                await jobs.configure(zq.QueueConfig(shards=shards))
            await jobs.put(b"first")
            changes = cluster.ensemble.judge = Changes("/zms/jobs")
            puts = [jobs.put(b"%d" % each, priority=each % PRIORITIES, delay=delay) for each in range(5 * PRIORITIES)]
            await asyncio.gather(*puts)
            assert 0 < changes.seen <= FEW
            assert await jobs.size() == 5 * PRIORITIES + 1

    run_virtual(main)


def test_priorities_for_which_there_is_no_room_fail_and_the_others_are_put() -> None:
    async def main() -> None:
        async with make_cluster().connect() as session:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(shards=1024))
            await jobs.put(b"first")
            puts = [jobs.put(b"%d" % each, priority=each) for each in range(10)]
            results = await asyncio.gather(*puts, return_exceptions=True)
            stored = [each for each in results if isinstance(each, str)]
            refused = [each for each in results if isinstance(each, zq.InvalidOptionError)]
            assert len(stored) == await jobs.size() - 1
            assert stored
            assert refused
            assert len(stored) + len(refused) == 10

    run_virtual(main)


def test_a_put_is_admitted_at_once_while_others_wait_for_priorities_for_which_there_is_no_room() -> None:
    """Otherwise the session would keep writing the same configuration while such puts are repeated."""

    async def main() -> None:
        cluster = make_cluster()
        async with cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.configure(zq.QueueConfig(shards=1024))
            for priority in range(4):
                await jobs.put(b"first", priority=priority)
            changes = cluster.ensemble.judge = Changes("/zms/jobs")
            refused = [asyncio.ensure_future(jobs.put(b"%d" % each, priority=each)) for each in range(4, 8)]
            await asyncio.sleep(0)  # these puts wait first
            await jobs.put(b"later", delay=1)
            assert changes.seen == 1
            results = await asyncio.gather(*refused, return_exceptions=True)
            assert all(isinstance(each, zq.InvalidOptionError) for each in results)

    run_virtual(main)


def test_a_cancelled_put_of_a_new_priority_does_not_keep_the_others_waiting() -> None:
    async def main() -> None:
        async with make_cluster().connect() as session:
            jobs = session.queue("jobs")
            await jobs.put(b"first")
            puts = [asyncio.create_task(jobs.put(b"%d" % each, priority=each)) for each in range(1, 6)]
            await asyncio.sleep(0)
            puts[0].cancel()
            puts[2].cancel()
            results = await asyncio.gather(*puts, return_exceptions=True)
            assert [isinstance(each, str) for each in results] == [False, True, False, True, True]
            assert await jobs.size() == 4

    run_virtual(main)
