"""After a sweep of tag records is killed at any request, every message is still available to consumers with filters."""

from __future__ import annotations

import asyncio

import pytest

import aiozkqueue as zq
from aiozkqueue.queue.candidates.tag_records import sweep_tags
from aiozkqueue.session.internals import state_of
from tests.simulation.killing import When, killed_at


async def _prepare(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    for number in range(3):
        await jobs.put(b"%d" % number, tags={"n": number})
    async with session.transaction() as tx:
        assert await tx.take(jobs, filters=zq.Filter("n", "eq", 0), timeout=5) is not None
        dead = await tx.take(jobs, filters=zq.Filter("n", "eq", 2), timeout=5)
        assert dead is not None
        tx.reject(dead, "bad")


async def _sweep(session: zq.QueueSession) -> int:
    zookeeper, paths = session._runtime.zookeeper, state_of(session.queue("jobs")).paths

    async def folders() -> list[str]:
        return [paths.dlq, paths.items, paths.dlq]

    return await sweep_tags(zookeeper, paths, folders, zookeeper.generation)


async def _sweep_all(session: zq.QueueSession) -> None:
    assert await _sweep(session) == 1


async def _continue_and_check(session: zq.QueueSession) -> list[str]:
    """Check that stored, redriven and new messages all have their tags, and that another sweep is possible."""
    await asyncio.sleep(10)  # until the session of the killed process has ended
    jobs = session.queue("jobs")
    await jobs.put(b"0 again", tags={"n": 0})
    await jobs.dead_letters.redrive()
    await _sweep(session)
    wrong: list[str] = []
    for number, body in enumerate([b"0 again", b"1", b"2"]):
        async with session.transaction() as tx:
            message = await tx.take(jobs, filters=zq.Filter("n", "eq", number), timeout=5)
        if message is None or message.body != body:
            wrong.append(f"n = {number}: {message and message.body!r}")
    await _sweep(session)
    left = await session._runtime.zookeeper.children(state_of(jobs).paths.filters)
    return [*wrong, f"records left: {left}"] if left else wrong


@pytest.mark.parametrize("when", When)
def test_a_sweep_killed_at_any_request_removes_no_tag_in_use(when: When) -> None:
    number = 0
    reached = True
    while reached:
        number += 1
        reached, found = killed_at(number, when, before=_prepare, work=_sweep_all, after=_continue_and_check)
        assert not found, f"killed at request {number}, {when.value.value}"
    assert number > 10
