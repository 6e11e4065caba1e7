"""Figures and diagnoses end within their time budget, and report what they skipped."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.admin import Severity
from aiozkqueue.operations.budget import Budget
from aiozkqueue.testing import Direction, Opcode

if TYPE_CHECKING:
    from aiozkqueue.testing import Request, ZooKeeperProxy
    from tests.integration.queue.conftest import Opener
    from tests.observer import Observer

#: The maximum number of lanes of a configuration.
WIDEST = json.dumps({"shards": 1024, "width": 1024, "priorities": {"1": {}, "2": {}, "3": {}}}).encode()


def lists_items(request: Request) -> bool:
    return request.opcode in (Opcode.GET_CHILDREN, Opcode.GET_CHILDREN2) and b"/items" in request.body


def asks_for_a_lane(request: Request) -> bool:
    return request.opcode == Opcode.EXISTS and b"/lanes/" in request.body


@pytest.fixture
async def wide(session: zq.QueueSession, server_view: Observer, queue_root: str) -> zq.Queue[bytes]:
    jobs = session.queue("wide")
    await jobs.put(b"plain")
    await server_view.set(f"{queue_root}/wide", WIDEST)
    await jobs.put(b"urgent", priority=2)
    return jobs


async def test_figures_and_diagnosis_of_the_widest_queue_are_complete_within_the_default_budget(
    session: zq.QueueSession, wide: zq.Queue[bytes]
) -> None:
    stats = await wide.stats()
    assert (stats.size, stats.put, stats.incomplete) == (2, 2, ())
    assert {priority: number for priority, number in stats.priorities.items() if number} == {0: 1, 2: 1}
    assert stats.oldest is not None
    diagnosis = await session.admin.diagnose("wide")
    assert (diagnosis.complete, list(diagnosis.unexamined)) == (True, [])
    (queue,) = diagnosis.queues
    assert (queue.size, queue.complete, queue.lanes_left, len(queue.lanes)) == (2, True, 0, 4096)


async def test_figures_that_take_longer_than_the_budget_are_named(
    open_session: Opener, zookeeper_proxy: ZooKeeperProxy
) -> None:
    session = await open_session(zookeeper_proxy.hosts)
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(collapse=True))
    await jobs.put_many([b"1", b"1", b"2"])
    held = zookeeper_proxy.hold_reply(lists_items, times=None)
    async with asyncio.timeout(30):
        stats = await jobs.stats(budget=0.5)
    held.release()
    assert (stats.size, stats.dead_letters, stats.oldest) == (3, 0, None)
    assert stats.incomplete == ("oldest", "groups", "groups_held", "duplicates", "expired", "bound")
    whole = await jobs.stats(budget=timedelta(minutes=1))
    assert (whole.incomplete, whole.duplicates, whole.oldest is not None) == ((), 1, True)


async def test_figures_of_lanes_that_were_not_read_are_named(
    open_session: Opener, wide: zq.Queue[bytes], zookeeper_proxy: ZooKeeperProxy
) -> None:
    session = await open_session(zookeeper_proxy.hosts)
    held = zookeeper_proxy.hold_request(asks_for_a_lane, nth=3000, times=None)
    async with asyncio.timeout(30):
        stats = await session.queue(wide.name).stats(budget=2)
    held.release()
    assert stats.incomplete[0] == "size"
    assert {"size", "put", "removed", "priorities", "oldest"} <= set(stats.incomplete)


@pytest.mark.slow
async def test_a_diagnosis_that_runs_out_of_time_names_the_parts_it_has_not_checked(
    open_session: Opener, session: zq.QueueSession, wide: zq.Queue[bytes], zookeeper_proxy: ZooKeeperProxy
) -> None:
    await session.queue("after").put(b"1")
    await session.queue("before").put(b"1")
    other = await open_session(zookeeper_proxy.hosts)
    held = zookeeper_proxy.hold_request(asks_for_a_lane, nth=2000, times=None)
    async with asyncio.timeout(60):
        diagnosis = await other.admin.diagnose("before", wide.name, "after", budget=4)
    held.release()
    assert not diagnosis.complete
    before, cut, *rest = diagnosis.queues
    assert (before.name, before.size, before.complete) == ("before", 1, True)
    assert (cut.name, cut.complete, cut.consumers) == ("wide", False, 0)
    assert 2000 < cut.lanes_left < 4096
    assert (cut.orphan_locks, cut.orphan_metas) == ([], ())  # no findings about lanes that were not listed
    unchecked = [*(queue.name for queue in rest), *diagnosis.unexamined]
    assert unchecked == ["after"]  # the held connection may not answer in time for this queue
    texts = [finding.text for finding in diagnosis.findings if finding.subject == "wide"]
    assert any("within the time budget" in text and "lanes were not listed" in text for text in texts)


async def test_queues_skipped_for_lack_of_time_are_named(
    open_session: Opener, session: zq.QueueSession, zookeeper_proxy: ZooKeeperProxy
) -> None:
    for name in ("a", "b", "c"):
        await session.queue(name).put(b"1")
    other = await open_session(zookeeper_proxy.hosts)
    # The diagnosis measures 40 round trips first, so the budget ends before the first queue.
    diagnosis = await other.admin.diagnose("a", "b", "c", budget=0.001)
    assert [*(queue.name for queue in diagnosis.queues), *diagnosis.unexamined] == ["a", "b", "c"]
    assert not diagnosis.complete
    assert diagnosis.count(Severity.ERROR) == 0
    (skipped,) = (finding for finding in diagnosis.findings if finding.subject == "queues")
    assert skipped.text == "3 were not checked within the time budget: a, b, c"


@pytest.mark.parametrize("budget", [0, -1, "10", float("nan")])
async def test_a_budget_that_is_not_a_duration_is_refused(session: zq.QueueSession, budget: float) -> None:
    with pytest.raises(zq.InvalidOptionError, match="budget"):
        await session.queue("jobs").stats(budget=budget)
    with pytest.raises(zq.InvalidOptionError, match="budget"):
        await session.admin.diagnose("jobs", budget=budget)


async def test_a_budget_cancels_slow_work_and_passes_other_errors_on() -> None:
    done: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            done.append("cancelled")
            raise

    async def failing() -> None:
        raise TimeoutError

    assert not await Budget(0.01).allows(slow())
    assert done == ["cancelled"]
    with pytest.raises(TimeoutError):
        await Budget(60).allows(failing())
    assert await Budget(60).allows(asyncio.sleep(0))


async def test_the_share_of_one_part_leaves_time_for_the_others() -> None:
    budget = Budget(100)
    assert 24 < budget.share(50).left < 26
    assert 49 < budget.share(2).left < 51
    assert budget.share(1).left > 99


async def test_a_diagnosis_measures_slow_servers_within_its_budget(
    open_session: Opener, zookeeper_proxy: ZooKeeperProxy
) -> None:
    session = await open_session(zookeeper_proxy.hosts)
    measured = {Opcode.EXISTS: 0, Opcode.MULTI: 0}

    def is_measured(request: Request) -> bool:
        if request.opcode == Opcode.MULTI and b"/.clients/doctor-" in request.body:
            measured[Opcode.MULTI] += 1
        elif request.opcode == Opcode.EXISTS and request.body.startswith(b"\0\0\0\1/\0"):
            measured[Opcode.EXISTS] += 1
        return False

    zookeeper_proxy.lose_before(is_measured)
    zookeeper_proxy.delay(0.4, Direction.TO_CLIENT)
    diagnosis = await session.admin.diagnose(budget=2)
    # A quarter of the budget allows two round trips, and a znode is created and removed for the writes.
    assert measured[Opcode.EXISTS] in {1, 2}
    assert measured[Opcode.MULTI] in {3, 4}
    assert diagnosis.ensemble.read.p50 >= 0.4
    assert diagnosis.ensemble.write is not None
    assert diagnosis.ensemble.write.p50 >= 0.4
