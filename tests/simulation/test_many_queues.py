"""A session that takes from thousands of queues keeps a bounded number of dispatchers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiozkqueue.session import core
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual, simulated

if TYPE_CHECKING:
    import pytest

QUEUES, KEPT = 60, 10


def test_a_session_that_takes_from_many_queues_once_keeps_few_dispatchers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "MOST_QUEUES", KEPT)

    async def main() -> tuple[int, list[bytes], int]:
        async with simulated() as cluster, cluster.connect() as session:
            taken: list[bytes] = []
            for number in range(QUEUES):
                await session.queue(f"tenant-{number}").put(b"%d" % number)
            async with session.transaction() as held:
                first = await held.take(session.queue("tenant-0"), timeout=5)
                assert first is not None
                taken.append(first.body)
                for number in range(1, QUEUES):
                    queue = session.queue(f"tenant-{number}")
                    async with session.transaction() as tx:
                        message = await tx.take(queue, timeout=5)
                        assert message is not None
                        taken.append(message.body)
                    await asyncio.sleep(60)  # the queue is idle for longer than its watches linger
            left = [await session.queue(f"tenant-{number}").size() for number in range(QUEUES)]
            await session.queue("tenant-1").put(b"again")  # a queue whose dispatcher has ended
            async with session.transaction() as tx:
                message = await tx.take(session.queue("tenant-1"), timeout=5)
                assert message is not None
                taken.append(message.body)
            return len(core_of(session)._dispatchers), taken, sum(left)

    kept, taken, left = run_virtual(main)
    assert kept <= KEPT + 1  # and the queue whose message is held
    assert taken == [*(b"%d" % number for number in range(QUEUES)), b"again"]
    assert left == 0
