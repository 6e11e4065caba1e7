"""An idle consumer takes messages that other consumers leave, even if more arrived at once than it remembers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from aiozkqueue.queue.candidates import backlog
from aiozkqueue.testing import run_virtual, simulated

if TYPE_CHECKING:
    import pytest

    import aiozkqueue as zq

#: One of six messages is in the idle consumer's own share. Of the others, it remembers fewer than their consumers
#: handle before they hang.
MESSAGES, OTHERS, KEPT, HANDLED, HELD = 72, 5, 26, 8, 2


class _Hanging:
    """A handler that returns for some messages, and then hangs with all slots in use."""

    def __init__(self) -> None:
        self.handled = 0

    async def __call__(self, _: zq.Delivery[bytes]) -> None:
        if self.handled == HANDLED:
            await asyncio.Event().wait()
        self.handled += 1


def test_an_idle_consumer_takes_messages_beyond_its_memory_limit_that_others_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backlog, "REPORTED_LIMIT", KEPT)

    async def main() -> None:
        async with simulated() as cluster, AsyncExitStack() as stack:
            producer, idle, *others = [await stack.enter_async_context(cluster.connect()) for _ in range(2 + OTHERS)]

            async def handle(_: zq.Delivery[bytes]) -> None: ...

            listeners = [
                session.listener(
                    session.queue("jobs"), handle if session is idle else _Hanging(), concurrency=HELD, drain_timeout=0
                )
                for session in (idle, *others)
            ]
            running = [asyncio.create_task(listener.run()) for listener in listeners]
            await asyncio.sleep(10)
            await producer.queue("jobs").put_many([b"job"] * MESSAGES)
            await asyncio.sleep(60)
            assert await producer.queue("jobs").size() == OTHERS * HELD, "the messages whose handlers hang"
            for listener in listeners:
                listener.stop()
            await asyncio.wait(running)

    run_virtual(main)
