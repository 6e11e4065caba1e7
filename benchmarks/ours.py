"""The library, used as documented: one transaction per message unless the case says otherwise."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of, state_of

from .measure import BODY, Case, Stopwatch
from .wire import Connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from .measure import Sample, Server

TASKS = 256
ROOT = "/benchmark-ours"
_names = (f"queue-{number}" for number in count())

#: Drains a queue of this many messages, and returns when all are settled.
Drain: TypeAlias = "Callable[[zq.QueueSession, zq.Queue[bytes], int], Awaitable[None]]"
#: Other work in the session.
OtherWork: TypeAlias = "Callable[[zq.QueueSession], AbstractAsyncContextManager[None]]"


async def spread(tasks: int, messages: int, operation: Callable[[], Awaitable[object]]) -> None:
    """Call ``operation`` this many times from this many tasks."""
    left = iter(range(messages))

    async def work() -> None:
        for _ in left:
            await operation()

    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(work())


@asynccontextmanager
async def nothing(_: zq.QueueSession) -> AsyncIterator[None]:
    """Run no other work in the session."""
    yield


@asynccontextmanager
async def opened(
    server: Server, other_work: OtherWork = nothing, bundle: int = 1
) -> AsyncIterator[tuple[zq.QueueSession, zq.Queue[bytes]]]:
    """Yield a session and a new, empty queue; remove all znodes afterwards."""
    async with zq.connect(server.hosts, root=ROOT, session_timeout=30) as session:
        queue = session.queue(next(_names))
        await queue.put(b"the first makes the queue")
        await queue.configure(zq.QueueConfig(bundle=bundle))
        async with session.transaction() as tx:
            await tx.take(queue)
        async with other_work(session):
            yield session, queue
    await asyncio.to_thread(remove, server)


def remove(server: Server) -> None:
    """Delete all znodes under the root."""
    with Connection(server.first) as connection:
        connection.remove(ROOT.encode())


def put(
    server: Server,
    messages: int,
    *,
    body: bytes = BODY,
    direct: bool = False,
    other_work: OtherWork = nothing,
    bundle: int = 1,
) -> Sample:
    """Put one message at a time, in a transaction or directly."""

    async def main() -> Sample:
        async with opened(server, other_work, bundle) as (session, queue):

            async def in_transaction() -> None:
                async with session.transaction() as tx:
                    tx.put(queue, body)

            put_once = partial(queue.put, body) if direct else in_transaction
            with Stopwatch(server) as watch:
                await spread(TASKS, messages, put_once)
            return watch.sample(messages)

    return asyncio.run(main())


def put_many(server: Server, messages: int, *, bundle: int = 1) -> Sample:
    """Put a thousand messages at a time from one task."""

    async def main() -> Sample:
        async with opened(server, bundle=bundle) as (_, queue):
            with Stopwatch(server) as watch:
                for _ in range(messages // 1000):
                    await queue.put_many([BODY] * 1000)
            return watch.sample(messages // 1000 * 1000)

    return asyncio.run(main())


def drained(
    server: Server,
    messages: int,
    *,
    drain: Drain,
    body: bytes = BODY,
    other_work: OtherWork = nothing,
    bundle: int = 1,
) -> Sample:
    """Fill a queue, and measure how it is drained."""

    async def main() -> Sample:
        async with opened(server, other_work, bundle) as (session, queue):
            await queue.put_many([body] * messages)
            counts = core_of(queue).dispatcher(state_of(queue)).counts
            before = counts.batches
            with Stopwatch(server) as watch:
                await drain(session, queue, messages)
            if left := await queue.size():
                raise RuntimeError(f"{left} messages are left")
            return watch.sample(messages, batch=messages / (counts.batches - before))

    return asyncio.run(main())


async def take(session: zq.QueueSession, queue: zq.Queue[bytes], messages: int) -> None:
    """Take and commit one message per transaction."""

    async def take_and_commit() -> None:
        async with session.transaction() as tx:
            if await tx.take(queue, timeout=30) is None:
                raise RuntimeError("a message is missing")

    await spread(TASKS, messages, take_and_commit)


async def take_many(session: zq.QueueSession, queue: zq.Queue[bytes], messages: int, *, tasks: int) -> None:
    """Take and commit a hundred messages per transaction."""
    left = messages

    async def work() -> None:
        nonlocal left
        while left > 0:
            async with session.transaction() as tx:
                taken = await tx.take_many(queue, 100, timeout=0.2)
            left -= len(taken)

    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(work())


async def listen(
    session: zq.QueueSession, queue: zq.Queue[bytes], messages: int, *, concurrency: int = TASKS, results: bool = True
) -> None:
    """Serve a queue with a listener; each message puts one result."""
    handled = 0

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        nonlocal handled
        if results:
            delivery.put("results", delivery.body)
        handled += 1
        if handled == messages:
            listener.stop()

    listener = session.listener(queue, handler, concurrency=concurrency)
    await listener.run()


async def iterate(session: zq.QueueSession, queue: zq.Queue[bytes], messages: int) -> None:  # noqa: ARG001 - a Drain
    """Iterate with the default settings; the loop commits."""
    seen = 0
    async with queue.consume() as deliveries:
        async for _ in deliveries:
            seen += 1
            if seen == messages:
                deliveries.stop()


BUNDLED = partial(drained, bundle=64)

CASES = [
    Case("put, a transaction each", "put", 40_000, put),
    Case("put, a transaction each, bundles", "put", 80_000, partial(put, bundle=64)),
    Case("put, direct", "put", 40_000, partial(put, direct=True)),
    Case("put_many(1,000), 1 task", "put", 60_000, put_many),
    Case("put_many(1,000), 1 task, bundles", "put", 200_000, partial(put_many, bundle=64)),
    Case("take + commit, a transaction each", "take", 30_000, partial(drained, drain=take)),
    Case("take + commit, a transaction each, bundles", "take", 60_000, partial(BUNDLED, drain=take)),
    Case("listener, a result each", "listener", 20_000, partial(drained, drain=listen)),
    Case("listener, a result each, bundles", "listener", 40_000, partial(BUNDLED, drain=listen)),
    Case("listener, no result", "listener", 20_000, partial(drained, drain=partial(listen, results=False))),
    Case("take_many(100), 1 task", "take_many", 30_000, partial(drained, drain=partial(take_many, tasks=1))),
    Case("take_many(100), 1 task, bundles", "take_many", 90_000, partial(BUNDLED, drain=partial(take_many, tasks=1))),
    Case("take_many(100), 4 tasks", "take_many", 30_000, partial(drained, drain=partial(take_many, tasks=4))),
    Case("async for, default settings", "iterate", 15_000, partial(drained, drain=iterate)),
    Case("async for, default settings, bundles", "iterate", 30_000, partial(BUNDLED, drain=iterate)),
]
