"""A session that takes from many queues ends dispatchers, but not the dispatcher of a queue with a held message."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.session import core
from aiozkqueue.testing import run_virtual, simulated

if TYPE_CHECKING:
    from collections.abc import Callable

    import aiozkqueue as zq

KEPT = 3


def of_curator(session: zq.QueueSession) -> zq.Queue[bytes]:
    return session.curator_queue("/app/curators", lock_path="/app/locks")


def of_kazoo(session: zq.QueueSession) -> zq.Queue[bytes]:
    return session.kazoo_queue("/app/kazoos")


def ours(session: zq.QueueSession) -> zq.Queue[bytes]:
    return session.queue("jobs")


@pytest.mark.parametrize("queue_of", [of_curator, of_kazoo, ours])
def test_a_held_message_is_redelivered_after_its_delay(
    queue_of: Callable[[zq.QueueSession], zq.Queue[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "MOST_QUEUES", KEPT)

    async def main() -> None:
        async with simulated() as cluster, cluster.connect() as session, cluster.connect() as other:
            queue = queue_of(session)
            await queue.put(b"x")
            async with session.transaction(autocommit=False) as held:
                assert await held.take(queue, timeout=5) is not None
                for number in range(2 * KEPT):
                    async with session.transaction() as tx:
                        assert await tx.take(session.queue(f"other-{number}"), timeout=1) is None
                    await asyncio.sleep(60)  # the watches are removed meanwhile
                await held.rollback(delay=5)
            async with other.transaction() as tx:
                message = await tx.take(queue_of(other), timeout=60)
                assert message is not None
                assert message.body == b"x"

    run_virtual(main)
