"""A scheduler is killed at any request. Another one continues, without duplicated or missing occurrences."""

from __future__ import annotations

import asyncio
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.schedule import Jobs, Scheduler
from tests.simulation.killing import When, killed_at

if TYPE_CHECKING:
    import aiozkqueue as zq


async def _add(session: zq.QueueSession) -> None:
    await Jobs(session).add("tick", "* * * * * *", "ticks", b"", missed="all", limit=1000)


async def _schedule(session: zq.QueueSession) -> None:
    async with Scheduler(session):
        await asyncio.sleep(3.5)


async def _continue_and_check(session: zq.QueueSession) -> list[str]:
    async with Scheduler(session):
        await asyncio.sleep(2.5)
    dates = [
        datetime.fromisoformat(message.headers["occurrence"]) for message in await session.queue("ticks").peek(1000)
    ]
    gaps = [(after - before).total_seconds() for before, after in pairwise(sorted(dates))]
    return [f"{len(dates)} messages, {gaps} seconds apart"] if set(gaps) != {1.0} else []


@pytest.mark.parametrize("when", When)
def test_a_scheduler_killed_at_any_request_loses_and_duplicates_no_message(when: When) -> None:
    number = 0
    reached = True
    while reached:
        number += 1
        reached, found = killed_at(number, when, before=_add, work=_schedule, after=_continue_and_check)
        assert not found, f"killed at request {number}, {when.value.value}"
    assert number > 10
