"""A message that is available again under its id before its last claim is known to have ended is not missed."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    import aiozkqueue as zq
    from aiozkqueue.testing import ZooKeeperProxy
    from tests.integration.queue.conftest import Opener

pytestmark = pytest.mark.timeout(60)


@contextmanager
def not_reading(session: zq.QueueSession) -> Iterator[None]:
    """Leave the server's data in the socket during the block, as a busy loop does; then read all of it."""
    transport = session._runtime.zookeeper._session._connection._transport  # type: ignore[attr-defined]
    transport.pause_reading()
    try:
        yield
    finally:
        transport.resume_reading()


async def take(session: zq.QueueSession) -> str:
    async with session.transaction() as tx:
        message = await tx.take(session.queue("jobs"), timeout=None)
        assert message is not None
        return message.id


@pytest.mark.parametrize("priority", [0, 5])
async def test_a_dead_letter_redriven_before_the_reply_to_its_reject_is_taken(
    session: zq.QueueSession, other: zq.QueueSession, priority: int
) -> None:
    letters = other.queue("jobs").dead_letters
    message_id = await session.queue("jobs").put(b"1", priority=priority)

    async def redriven() -> bool:
        return await letters.redrive() == 1

    async with asyncio.TaskGroup() as tasks:
        async with session.transaction() as tx:
            message = await tx.take(session.queue("jobs"), timeout=30)
            assert message is not None
            waiting = tasks.create_task(take(session))
            await asyncio.sleep(0.2)  # long enough to be idle and have its watches set
            tx.reject(message, "no such order")
            with not_reading(session):
                commit = tasks.create_task(tx.commit())
                await eventually(redriven)
            await commit
        async with asyncio.timeout(10):
            assert await waiting == message_id
    assert await other.queue("jobs").size() == 0


async def test_a_dead_letter_redriven_while_its_rejecter_is_disconnected_is_taken(
    open_session: Opener, zookeeper_proxy: ZooKeeperProxy, other: zq.QueueSession
) -> None:
    session = await open_session(zookeeper_proxy.hosts)
    letters = other.queue("jobs").dead_letters
    ids = await session.queue("jobs").put_many([b"%d" % number for number in range(20)])

    async def redriven() -> bool:
        return await letters.redrive() > 0

    async with asyncio.TaskGroup() as tasks:
        async with session.transaction() as tx:
            for message in await tx.take_many(session.queue("jobs"), len(ids), timeout=30):
                tx.reject(message, "no such order")
            waiting = [tasks.create_task(take(session)) for _ in ids]
            await asyncio.sleep(0.2)  # long enough to be idle and have its watches set
            with not_reading(session):
                commit = tasks.create_task(tx.commit())
                await eventually(redriven)
                zookeeper_proxy.reset_connections()
            await commit
        async with asyncio.timeout(20):
            assert sorted(await asyncio.gather(*waiting)) == sorted(ids)
    assert await other.queue("jobs").size() == 0


async def test_a_message_missed_while_a_claim_ends_is_listed_afterwards(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.put(b"1")
    candidates = session._runtime.dispatcher(session._runtime.queue_state("jobs"))._candidates
    async with session.transaction() as tx:
        message = await tx.take(jobs, timeout=30)
        assert message is not None
        candidates.on_missed()  # the next listing skips messages that count as held
        candidates.levels.plain.must_list = False  # type: ignore[union-attr]
    assert candidates.levels.plain.must_list  # type: ignore[union-attr]
