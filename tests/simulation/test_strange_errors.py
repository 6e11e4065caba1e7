"""Errors of handlers that cannot be described or have wrong values: the message is retried, others continue."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

import aiozkqueue as zq
from aiozkqueue.testing import run_virtual
from aiozkqueue.testing.simulator.cluster import make_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from aiozkqueue.listeners import Batch

    Handle = Callable[[zq.Message[bytes]], None]
    Way = Callable[[zq.QueueSession, zq.Queue[bytes], Handle], Coroutine[Any, Any, None]]


class UnreadableError(Exception):
    """An error whose text needs an attribute that does not exist."""

    order_id: int

    def __str__(self) -> str:
        return f"order {self.order_id} failed"


async def transactions(session: zq.QueueSession, jobs: zq.Queue[bytes], handle: Handle) -> None:
    while True:
        with suppress(UnreadableError, zq.InvalidOptionError):
            async with session.transaction() as tx:
                message = await tx.take(jobs)
                assert message is not None
                handle(message)


async def consume(_: zq.QueueSession, jobs: zq.Queue[bytes], handle: Handle) -> None:
    async with jobs.consume() as deliveries:
        async for delivery in deliveries:
            with suppress(UnreadableError, zq.InvalidOptionError):
                async with delivery:
                    handle(delivery)


async def listener(session: zq.QueueSession, jobs: zq.Queue[bytes], handle: Handle) -> None:
    async def handle_message(delivery: zq.Delivery[bytes]) -> None:
        handle(delivery)

    await session.listener(jobs, handle_message).run()


async def batches(session: zq.QueueSession, jobs: zq.Queue[bytes], handle: Handle) -> None:
    async def some(batch: Batch[bytes]) -> None:
        for delivery in batch:
            handle(delivery)

    await session.listener(jobs, some, batch=1).run()


wrong = cast("Any", zq)

ERRORS: dict[str, Callable[[], Exception]] = {
    "no text": UnreadableError,
    "reason": lambda: cast("Exception", wrong.Reject(ValueError("no such order"))),
    "endless delay": lambda: zq.Retry(delay=timedelta.max),
    "negative delay": lambda: zq.Retry(delay=-1),
    "milliseconds since 1970": lambda: zq.Retry(schedule=[1_795_820_023_000]),
    "schedule": lambda: cast("Exception", wrong.Retry(schedule=5)),
    "headers": lambda: cast("Exception", wrong.Retry(headers=[("a", "b")])),
    "header": lambda: cast("Exception", wrong.Retry(headers={"a": 1})),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("way", [listener, batches, transactions, consume])
def test_a_strange_error_of_a_handler_uses_up_the_attempts_of_its_message(way: Way, error: str) -> None:
    done: list[bytes] = []

    def handle(message: zq.Message[bytes]) -> None:
        if message.value == b"bad":
            failure = ERRORS[error]()
            raise failure
        done.append(message.value)

    async def main() -> None:
        cluster = make_cluster(seed=0)
        async with cluster.connect() as session:
            jobs = session.queue("jobs", policy=zq.ConsumeTimes(3, backoff=zq.Fixed(0)))
            await jobs.put_many([b"1", b"bad", b"2"])
            worker = asyncio.create_task(way(session, jobs, handle))
            await asyncio.sleep(60)
            worker.cancel()
            await asyncio.wait([worker])
            stats = await jobs.stats()
            assert (sorted(done), stats.size, stats.dead_letters) == ([b"1", b"2"], 0, 1)
            [letter] = await jobs.dead_letters.peek()
            assert letter.attempt == 3

    run_virtual(main)


@pytest.mark.parametrize("seconds", [1e10, 1_795_820_023_000, 1e306, timedelta.max])
def test_a_delay_of_more_than_thirty_years_is_refused(seconds: float | timedelta) -> None:
    async def main() -> None:
        cluster = make_cluster(seed=0)
        async with cluster.connect() as session:
            jobs = session.queue("jobs")
            await jobs.put(b"1")
            with pytest.raises(zq.InvalidOptionError, match="at most 1000000000"):
                await jobs.leases.take(lifetime=seconds)
            with pytest.raises(zq.InvalidOptionError, match="at most 1000000000"):
                await jobs.leases.renew([], lifetime=seconds)
            with pytest.raises(zq.InvalidOptionError, match="at most 1000000000"):
                await jobs.put(b"2", delay=seconds)
            async with session.transaction(autocommit=False) as tx:
                message = await tx.take(jobs, timeout=5)
                assert message is not None
                with pytest.raises(zq.InvalidOptionError, match="at most 1000000000"):
                    tx.release(message, delay=seconds)
                with pytest.raises(zq.InvalidOptionError, match="at most 1000000000"):
                    await tx.rollback(delay=seconds)
                await tx.commit()
            assert await jobs.size() == 0

    run_virtual(main)
