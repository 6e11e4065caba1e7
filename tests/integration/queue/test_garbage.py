"""A handled message is freed at once: it leaves no reference cycle for the garbage collector.

To find such cycles, the collector visits every object of the program, which takes as long as the handling itself.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    Work = Callable[[zq.QueueSession], Awaitable[None]]

MESSAGES = 100


@contextmanager
def garbage() -> Iterator[Counter[str]]:
    """Count the objects of the package that only the garbage collector can free, by type."""
    counts = Counter[str]()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield counts
        gc.collect()
        counts.update(type(found).__name__ for found in gc.garbage if type(found).__module__.startswith("aiozkqueue"))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def puts(session: zq.QueueSession) -> None:
    for number in range(MESSAGES):
        await session.queue("results").put(b"%d" % number, headers={"number": str(number)})


async def transactions(session: zq.QueueSession) -> None:
    for _ in range(MESSAGES):
        async with session.transaction() as tx:
            assert await tx.take(session.queue("jobs"), timeout=5) is not None
            tx.put("results", b"")


async def rollbacks(session: zq.QueueSession) -> None:
    for _ in range(MESSAGES):
        async with session.transaction() as tx:
            assert await tx.take(session.queue("jobs"), timeout=5) is not None
            tx.put("results", b"")
            await tx.rollback()


async def loops(session: zq.QueueSession) -> None:
    async with session.queue("jobs").consume(until_idle=1) as deliveries:
        async for delivery in deliveries:
            async with delivery:
                delivery.put("results", delivery.body)


async def listeners(session: zq.QueueSession) -> None:
    handled = 0

    async def handle(delivery: zq.Delivery[bytes]) -> None:
        nonlocal handled
        delivery.put("results", delivery.body)
        handled += 1
        if handled == MESSAGES:
            listener.stop()

    listener = session.listener(session.queue("jobs"), handle, concurrency=4)
    await listener.run()


async def retries(session: zq.QueueSession, **options: Any) -> None:
    failed = 0

    async def handle(_: object) -> None:
        nonlocal failed
        failed += 1
        if failed == MESSAGES:
            listener.stop()
        raise zq.Retry(delay=0)

    listener = session.listener(session.queue("jobs"), handle, **options)
    await listener.run()


async def failing_batches(session: zq.QueueSession) -> None:
    await retries(session, batch=1)


@pytest.mark.parametrize("bundle", [64, 1], ids=["bundles", "single items"])
@pytest.mark.parametrize("work", [puts, transactions, rollbacks, loops, listeners, retries, failing_batches])
async def test_handled_messages_leave_no_garbage(session: zq.QueueSession, work: Work, bundle: int) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(bundle=bundle))
    await jobs.put_many([b"%d" % number for number in range(2 * MESSAGES)])
    await session.queue("results").put(b"the first")
    with garbage() as counts:
        await work(session)
        await asyncio.sleep(0.1)
    assert {kind: number for kind, number in counts.items() if number >= MESSAGES // 2} == {}
