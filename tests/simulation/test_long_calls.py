"""Calls that wait for days."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiozkqueue.session.internals import core_of
from tests.simulation.test_known_configuration import play

if TYPE_CHECKING:
    import aiozkqueue as zq

HOUR = 3600


def test_a_call_returns_the_reply_of_a_handler_that_runs_for_days() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        caller, worker, operator = sessions

        async def handler(delivery: zq.Delivery[bytes]) -> None:
            await asyncio.sleep(60 * HOUR)
            delivery.reply(b"done")

        async def clean() -> None:
            while True:
                await asyncio.sleep(5 * HOUR)
                await operator.admin.clean()

        async with worker.listener(worker.queue("jobs"), handler):
            cleaning = asyncio.create_task(clean())
            assert await caller.queue("jobs").call(b"job", timeout=100 * HOUR) == b"done"
            cleaning.cancel()
        assert await caller.queue("jobs").size() == 0

    play(program, options=[{"session_timeout": 40 * 60}] * 3, limit=200 * HOUR)


def test_the_folder_of_a_session_without_waiting_calls_is_removed_after_a_day() -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        caller, worker = sessions

        async def handler(delivery: zq.Delivery[bytes]) -> None:
            delivery.reply(b"done")

        async with worker.listener(worker.queue("jobs"), handler):
            assert await caller.queue("jobs").call(b"job", timeout=60) == b"done"
            await asyncio.sleep(30 * HOUR)
            await worker.admin.clean()
        assert core_of(caller).ids.client not in await core_of(worker).zookeeper.children("/zms/.clients")

    play(program, 2, options=[{"session_timeout": 40 * 60}] * 2, limit=200 * HOUR)
