"""A clean-up that is killed at any request removes nothing that is in use, and the next one finishes the work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.layout import AttemptRecord, HistoryRecord, LockRecord
from aiozkqueue.operations.cleaning import clean_queue
from aiozkqueue.zookeeper import Create
from tests.simulation.killing import When, killed_at

if TYPE_CHECKING:
    from aiozkqueue.operations.cleaning import Cleaned

MOST = 3


async def _clean(session: zq.QueueSession) -> Cleaned:
    return await clean_queue(session._runtime.handle("jobs"), late=0)


async def _store_leftovers(session: zq.QueueSession) -> None:
    """Store a message that failed once, and leftovers of others: attempts, a lock, and too much history."""
    queue = session.queue("jobs")
    policy = zq.ConsumeTimes(2, backoff=zq.Fixed(0))
    await queue.configure(zq.QueueConfig(policy=policy, history=zq.History(most=MOST)))
    await queue.put(b"alive")
    async with session.transaction(autocommit=False) as tx:
        assert await tx.take(queue)
        await tx.rollback()
    zookeeper, paths = session._runtime.zookeeper, session._runtime.queue_state("jobs").paths
    now = session._runtime.server_clock.now()
    end = now - 1000
    records = [HistoryRecord(id=f"r{age}", ended=now - age, outcome=zq.End.FINISHED, put=now - age) for age in range(6)]
    for record in records:
        await zookeeper.ensure(paths.record(record.place).rpartition("/")[0])
    await zookeeper.multi(
        [
            Create(paths.meta("gone"), AttemptRecord(1).encode()),
            Create(paths.lock("gone2"), LockRecord("c", "o", end).encode()),
            Create(paths.lock("gone3"), LockRecord("c", "o", end).encode()),
            Create(paths.due_node(end, "gone3"), b"items/item-igone3-0000000007"),
            *(Create(paths.record(record.place), record.encode()) for record in records),
        ]
    )


async def _work(session: zq.QueueSession) -> None:
    await _clean(session)


async def _check_state(session: zq.QueueSession) -> list[str]:
    await _clean(session)
    zookeeper, paths = session._runtime.zookeeper, session._runtime.queue_state("jobs").paths
    found: list[str] = []
    for folder in (paths.locks, paths.due):
        found += [f"{folder}/{name} is left" for name in await zookeeper.children(folder)]
    queue = session.queue("jobs")
    (alive,) = await queue.peek()
    if alive.attempt != 1 or await zookeeper.children(paths.metas) != [f"meta-{alive.id}"]:
        found.append(f"attempt {alive.attempt}, of {await zookeeper.children(paths.metas)}")
    kept = [record.id async for record in queue.history()]
    if kept != ["r2", "r1", "r0"]:
        found.append(f"history has {kept}")
    async with session.transaction() as tx:
        message = await tx.take(queue, timeout=30)
        if message is None or message.attempt != 2:
            found.append("the living message cannot be taken as its second attempt")
    return found


@pytest.mark.parametrize("when", When)
def test_a_clean_up_killed_at_any_request_removes_only_leftovers(when: When) -> None:
    number = 0
    reached = True
    while reached:
        number += 1
        reached, found = killed_at(number, when, before=_store_leftovers, work=_work, after=_check_state)
        assert not found, f"killed at request {number}, {when.value.value}"
    assert number > 10
