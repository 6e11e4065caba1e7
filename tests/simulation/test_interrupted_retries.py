"""Handlers that request scheduled retries, and are cancelled while ZooKeeper's time is measured for the next retry."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import run_virtual, simulated

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.listeners import Batch

#: Seconds of a request or an answer on the network, and of a handler, after which ZooKeeper's time is unknown again.
LATENCY, LONG = 0.1, 100.0


async def listen(session: zq.QueueSession, fail: Callable[[], Awaitable[None]]) -> None:
    async def handler(_: zq.Delivery[bytes]) -> None:
        await fail()

    await session.listener(session.queue("jobs"), handler).run()


async def listen_to_batches(session: zq.QueueSession, fail: Callable[[], Awaitable[None]]) -> None:
    async def handler(_: Batch[bytes]) -> None:
        await fail()

    await session.listener(session.queue("jobs"), handler, batch=10).run()


async def loop(session: zq.QueueSession, fail: Callable[[], Awaitable[None]]) -> None:
    async with session.queue("jobs").consume() as deliveries:
        async for delivery in deliveries:
            async with delivery:
                await fail()


@pytest.mark.parametrize("bundle", [1, 64])
@pytest.mark.parametrize("after", [0.0, LATENCY / 2, 1.5 * LATENCY, 3 * LATENCY])
@pytest.mark.parametrize("take", [listen, listen_to_batches, loop])
def test_the_message_of_a_cancelled_handler_is_free_while_its_session_lives(
    take: Callable[[zq.QueueSession, Callable[[], Awaitable[None]]], Awaitable[None]], after: float, bundle: int
) -> None:
    async def main() -> None:
        async with simulated() as cluster:
            cluster.ensemble.delays.network = lambda: LATENCY
            async with cluster.connect() as session, cluster.connect() as other:
                await session.queue("jobs").configure(zq.QueueConfig(bundle=bundle))
                await session.queue("jobs").put(b"x")
                failing = asyncio.Event()

                async def fail() -> None:
                    await asyncio.sleep(LONG)
                    failing.set()
                    raise zq.Retry(schedule=[5, 5])

                taking = asyncio.ensure_future(take(session, fail))
                await failing.wait()
                await asyncio.sleep(after)
                taking.cancel()
                await asyncio.wait([taking])
                async with other.transaction() as tx:
                    assert await tx.take(other.queue("jobs"), timeout=60) is not None

    run_virtual(main)
