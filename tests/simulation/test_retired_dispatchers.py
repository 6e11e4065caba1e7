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


@pytest.mark.parametrize("again", [False, True], ids=["retired", "waiting for the next queue of the name"])
def test_a_session_does_not_count_its_entries_in_deleted_queues(again: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001 - a parameter of the test
    """Otherwise a session that takes from thousands of temporary queues could hold no lock at last."""
    monkeypatch.setattr(core, "MOST_QUEUES", KEPT)

    async def main() -> None:
        async with simulated() as cluster, cluster.connect() as session:

            async def take(name: str, timeout: float) -> bool:
                async with session.transaction() as tx:
                    return await tx.take(session.queue(name), timeout=timeout) is not None

            counted: list[int] = []
            for number in range(4 * KEPT):
                name = f"temporary-{number:02}"
                await session.queue(name).put(b"x")
                assert await take(name, 5)
                await session.queue(name).admin.delete()
                if again:
                    assert not await take(name, 1)
                counted.append(session._core._budgets.of(1).used)
                await asyncio.sleep(60)
            assert counted[-1] == counted[KEPT]
            assert not again or counted[-1] == 0

    run_virtual(main)


def test_a_session_keeps_no_dispatchers_of_listeners_that_are_cancelled_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second cancellation arrives while the listener waits for the release of its messages."""
    monkeypatch.setattr(core, "MOST_QUEUES", KEPT)

    async def main() -> None:
        async with simulated() as cluster, cluster.connect() as session:

            async def handle(delivery: zq.Delivery[bytes]) -> None:
                del delivery
                await asyncio.sleep(60)

            for number in range(4 * KEPT):
                jobs = session.queue(f"jobs-{number}")
                await jobs.put(b"x")
                running = asyncio.create_task(session.listener(jobs, handle, concurrency=2).run())
                await asyncio.sleep(1)
                while not running.done():
                    running.cancel()
                    await asyncio.sleep(0)
                await asyncio.sleep(60)
            tasks = [task.get_name() for task in asyncio.all_tasks()]
            assert len([name for name in tasks if "claim dispatcher" in name]) <= KEPT

    run_virtual(main)
