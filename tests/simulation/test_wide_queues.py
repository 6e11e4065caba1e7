"""Queues with many lanes and few messages: a message costs few requests, however many lanes are empty."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import PAGE
from tests.simulation.test_known_configuration import play

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGES = 60


def count_requests(session: zq.QueueSession) -> list[str]:
    """Return a list to which the name of each further request of a session is appended."""
    zookeeper: Any = core_of(session).zookeeper  # Any: its methods are replaced
    requests: list[str] = []

    def counted(name: str, request: Callable[..., Any]) -> Callable[..., Any]:
        def send(*args: Any, **options: Any) -> Any:
            requests.append(name)
            return request(*args, **options)

        return send

    for name in ("read", "read_many", "read_versioned", "children", "children_into", "exists", "multi"):
        setattr(zookeeper, name, counted(name, getattr(zookeeper, name)))
    return requests


@pytest.mark.parametrize("priorities", [1, 3])
def test_a_message_of_a_queue_with_a_thousand_shards_costs_a_few_requests(priorities: int) -> None:
    async def program(sessions: list[zq.QueueSession]) -> None:
        producer, consumer = sessions
        jobs = producer.queue("jobs")
        await jobs.configure(zq.QueueConfig(shards=1024, bundle=1))
        for number in range(MESSAGES):
            await jobs.put(b"%d" % number, priority=number % priorities)
        requests = count_requests(consumer)
        taken: list[int] = []
        while len(taken) < MESSAGES:
            async with consumer.transaction() as tx:
                message = await tx.take(consumer.queue("jobs"), timeout=1)
                assert message is not None
                taken.append(int(message.body))
        assert len(requests) < 12 * MESSAGES + 200
        assert sorted(taken) == list(range(MESSAGES))
        urgency = [number % priorities for number in taken]
        assert urgency == sorted(urgency)
        await jobs.put(b"late")
        async with consumer.transaction() as tx:
            message = await tx.take(consumer.queue("jobs"), timeout=1)
            assert message is not None
            assert message.body == b"late"

    play(program, 2)


def test_a_session_that_watches_a_thousand_shards_sends_a_page_of_requests_at_a_time() -> None:
    most: list[int] = []

    async def program(sessions: list[zq.QueueSession]) -> None:
        producer, consumer = sessions
        zookeeper: Any = core_of(consumer).zookeeper  # Any: its methods are replaced
        pending, watch = set[str](), zookeeper.watch

        async def counted(path: str, *args: Any, **options: Any) -> Any:
            pending.add(path)
            most.append(len(pending))
            try:
                return await watch(path, *args, **options)
            finally:
                pending.discard(path)

        zookeeper.watch = counted
        jobs = producer.queue("jobs")
        await jobs.configure(zq.QueueConfig(shards=1024))
        await jobs.put(b"least urgent", priority=5)
        for _ in range(6):
            await jobs.put_many([b"%d" % number for number in range(400)])
        taken = 0
        while taken < 2401:
            async with consumer.transaction() as tx:
                taken += len(await tx.take_many(consumer.queue("jobs"), 50, timeout=5))

    play(program, 2)
    assert len(most) >= 1024
    assert max(most) <= PAGE


def test_a_move_of_bundles_in_the_most_shards_leaves_no_message() -> None:
    """Their messages become single items during the move, and belong to it by the counters of their lanes."""
    number = 2060

    async def program(sessions: list[zq.QueueSession]) -> None:
        (session,) = sessions
        jobs = session.queue("jobs")
        await jobs.configure(zq.QueueConfig(shards=1024, bundle=2))
        await jobs.put_many([b""] * number)
        reference = await session.admin.moves.start("jobs", "target")
        await asyncio.sleep(600)
        status = await session.admin.moves.status(reference)
        assert (status.state, status.moved) == ("done", number)
        assert await jobs.size() == 0
        assert await session.queue("target").size() == number

    play(program, 1)
