"""A process that reassigns messages is killed at any request.

Another one continues, without lost or duplicated messages.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from tests.simulation.killing import When, killed_at
from tests.simulation.stories.sticky import STICKY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MESSAGES = [str(number).encode() for number in range(3)]


async def _put(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(STICKY)
    await jobs.configure(zq.QueueConfig(history=zq.History()))
    await jobs.put_many(MESSAGES)
    await asyncio.sleep(1)


async def _reap(session: zq.QueueSession) -> None:
    assert await session.queue("jobs").admin.reap() == len(MESSAGES)


async def _continue_and_check(session: zq.QueueSession) -> list[str]:
    jobs = session.queue("jobs")
    await jobs.admin.reap()
    taken: list[bytes] = []
    while True:
        async with session.transaction() as tx:
            messages = await tx.take_many(jobs, 10, timeout=1)
        if not messages:
            break
        taken += [message.value for message in messages]
    ends = sorted([record.outcome.value async for record in jobs.history()])
    wrong = [] if sorted(taken) == MESSAGES else [f"taken: {taken}"]
    return wrong if ends == ["finished"] * 3 + ["reaped"] * 3 else [*wrong, f"recorded: {ends}"]


@pytest.mark.parametrize("when", When)
def test_a_reaper_killed_at_any_request_loses_and_duplicates_no_message(when: When) -> None:
    number = 0
    reached = True
    work: Callable[[zq.QueueSession], Awaitable[None]] = _reap
    while reached:
        number += 1
        reached, found = killed_at(number, when, before=_put, work=work, after=_continue_and_check)
        assert not found, f"killed at request {number}, {when.value.value}"
    assert number > 5
