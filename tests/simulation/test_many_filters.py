"""A session that takes with a new filter each time keeps neither dispatchers nor entries of earlier filters."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.session.core import MOST_FILTERS
from aiozkqueue.session.internals import core_of
from tests.simulation.test_known_configuration import play

if TYPE_CHECKING:
    from aiozkqueue.layout import Condition

FILTERS = 3 * MOST_FILTERS


def user(number: int) -> Condition:
    return zq.Filter("user", "eq", str(number))


@pytest.mark.parametrize("bundle", [1, 64], ids=["single items", "bundles"])
def test_a_session_that_takes_with_ever_new_filters_does_not_grow(bundle: int) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        producer, consumer = sessions
        jobs, mine = producer.queue("jobs"), consumer.queue("jobs")
        await jobs.configure(zq.QueueConfig(bundle=bundle))
        for number in range(FILTERS):
            await jobs.put(b"%d" % number, tags={"user": str(number)})
        handled: list[bytes] = []
        gate = asyncio.Event()

        async def handler(delivery: zq.Delivery[bytes]) -> None:
            handled.append(delivery.body)
            await gate.wait()

        tasks = len(asyncio.all_tasks())
        async with consumer.listener(mine, handler, filters=user(FILTERS - 1)):
            await asyncio.sleep(1)  # the handler runs while other filters are used
            for number in range(FILTERS - 1):
                async with consumer.transaction() as tx:
                    message = await tx.take(mine, filters=user(number), timeout=5)
                    assert message is not None
                    assert message.body == b"%d" % number
            await asyncio.sleep(1)
            entries = await core_of(producer).zookeeper.children("/zms/jobs/consumers")
            assert len(entries) <= MOST_FILTERS + 1
            assert len(asyncio.all_tasks()) < tasks + 2 * MOST_FILTERS + 20  # two for each filter
            await jobs.put(b"again", tags={"user": str(FILTERS - 1)})
            await jobs.put(b"early", tags={"user": "0"})
            gate.set()
            async with consumer.transaction() as tx:
                message = await tx.take(mine, filters=user(0), timeout=5)
                assert message is not None
                assert message.body == b"early"
            await asyncio.sleep(1)
        assert handled == [b"%d" % (FILTERS - 1), b"again"]
        assert await jobs.size() == 0

    play(program, 2)
