"""A writer whose queue is deleted and created again changes no record of the writer of the new queue."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.batches.staging import BatchWriter, fenced_puts
from aiozkqueue.operations.batch_writers import forget
from aiozkqueue.queue.put.prepare import make_ready, prepare
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import run_virtual, simulated
from aiozkqueue.zookeeper import Create, SetData
from tests.simulation.between import Between

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.batches.staging import Fence

QUEUE = "orders"


class Writer(BatchWriter):
    """The writer of one run of the same write."""

    def __init__(self, session: zq.QueueSession, run: str) -> None:
        super().__init__(core_of(session).handle(QUEUE), "writer")
        self.core = core_of(session)
        self.run = run

    async def write(self) -> Fence:
        """Begin the batch, and put one row."""
        fence = await self.begin(0, self.run)
        assert fence is not None
        progress = f"{self.path}/p0"
        await self.core.zookeeper.multi([Create(progress)])
        puts = [fence.staged(prepare(self.core, QUEUE, self.run.encode(), {}))]
        await make_ready(puts)
        progressed = SetData(progress, b"done", version=0)
        await self.core.settle(fenced_puts(self.core.ids.next(), puts, fence, progressed))
        return fence


async def completed(writer: Writer) -> Callable[[], Awaitable[object]]:
    fence = await writer.write()
    return lambda: writer.complete(0, fence.stage)


async def discarded(writer: Writer) -> Callable[[], Awaitable[object]]:
    await writer.write()
    return lambda: writer.abort(0, writer.run)


async def forgotten(writer: Writer) -> Callable[[], Awaitable[object]]:
    """Remove the record as a clean-up does that finds it old."""
    fence = await writer.write()
    await writer.complete(0, fence.stage)
    written = (await writer.core.zookeeper.read(writer.path)).stat.mtime
    return lambda: forget(writer.core.handle(QUEUE), writer.writer, written)


@pytest.mark.parametrize("done", [False, True], ids=["pending", "complete"])
@pytest.mark.parametrize("prepared", [completed, discarded, forgotten])
def test_a_call_for_a_deleted_queue_leaves_the_batch_of_the_queue_that_was_created_again(
    prepared: Callable[[Writer], Awaitable[Callable[[], Awaitable[object]]]],
    done: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    async def play(number: int) -> bool:
        async with simulated() as cluster, cluster.connect() as session, cluster.connect() as other:
            first, second = Writer(session, "first"), Writer(other, "second")
            call, orders = await prepared(first), other.queue(QUEUE)
            stages: list[str] = []

            async def create_again() -> None:
                await asyncio.sleep(1)
                await orders.admin.delete(force=True)
                stages.append((await second.write()).stage)
                if done:
                    await second.complete(0, stages[0])

            between = Between(session, number, create_again)
            with suppress(zq.NotCommittedError):
                await call()
            if not between.reached:
                return False
            await second.complete(0, *stages)
            assert await second.is_complete(0), number
            assert [message.body for message in await orders.peek()] == [b"second"], number
            assert (await orders.stats()).staged == 0, number
            assert not await core_of(other).zookeeper.children(core_of(other).queue_state(QUEUE).paths.locks), number
            return True

    numbers = 0
    while run_virtual(partial(play, numbers + 1)):
        numbers += 1
    assert numbers >= 3
