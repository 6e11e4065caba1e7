"""After a sweep of tag records is killed at any request, every message is still available to consumers with filters."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.operations.tag_sweep import sweep_tags
from aiozkqueue.session.internals import core_of, state_of
from tests.simulation.killing import When, killed_at
from tests.simulation.test_known_configuration import play

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


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


def test_a_sweep_of_a_deleted_queue_leaves_the_records_that_a_sweep_of_the_new_one_has_marked() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        slow, quick, operator = sessions
        jobs, paths = operator.queue("jobs"), state_of(operator.queue("jobs")).paths
        marked, listed = asyncio.Event(), asyncio.Event()

        async def prepared(queue: zq.Queue[bytes]) -> None:
            await queue.put(b"other", tags={"n": 1})
            await queue.put(b"1", tags={"n": 0})

        async def after_the_slow_one() -> list[str]:
            marked.set()
            await listed.wait()
            return [paths.items]

        async def sweep(session: zq.QueueSession, folders: Callable[[], Awaitable[list[str]]]) -> int:
            zookeeper = core_of(session).zookeeper
            return await sweep_tags(zookeeper, paths, folders, zookeeper.generation)

        async def slowly_until_the_new_one_is_marked() -> list[str]:
            await jobs.admin.delete(force=True)
            await prepared(operator.queue("jobs"))
            second.append(asyncio.create_task(sweep(quick, after_the_slow_one)))
            await marked.wait()
            return []

        second: list[asyncio.Task[int]] = []
        await prepared(jobs)
        assert await sweep(slow, slowly_until_the_new_one_is_marked) == 0
        assert await sweep(slow, after_the_slow_one) == 0  # the other sweep still has its lock
        listed.set()
        assert await second[0] == 0
        async with quick.transaction() as tx:
            assert await tx.take(quick.queue("jobs"), filters=zq.Filter("n", "eq", 0), timeout=5) is not None

    play(program, 3)
