"""Rates by the number of consumers, by depth and by payload size, and a queue of a million waiting messages."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import aiozkqueue as zq

from . import ours
from .consumers import Consumers, failed
from .measure import BODY, Case, Sample, Server, Stopwatch

SESSIONS = (1, 4, 16, 64)
TASKS = 32
DEPTHS = (1_000, 100_000)
#: All messages that sessions share are in bundles. In a new queue with default settings, the messages of the first
#: requests are single items, which would be a quarter of all.
BUNDLED = zq.QueueConfig(bundle=64)
#: Messages measured per depth. The deeper queue is listed once for all of them, which spreads the cost of the listing.
MOVED = 100_000
SIZES = {"10 kB": (10_000, 5_000), "100 kB": (100_000, 500)}
MILLION = 1_000_000
SHARDS = 64


def sessions(server: Server, messages: int, *, count: int) -> Sample:
    """Drain a queue with this many sessions of 32 tasks each, in up to four processes."""
    name = f"sessions-{count}"
    asyncio.run(_fill(server, name, 0, BUNDLED))
    with Consumers(server, name, "take", sessions=count, tasks=TASKS) as consumers:
        asyncio.run(_fill(server, name, messages))
        begun = time.monotonic()
        with Stopwatch(server, consumers.processes) as watch:
            consumers.signal()
            answers = consumers.answers()
    ours.remove(server)
    if sum(answer["messages"] for answer in answers) != messages:
        raise RuntimeError(f"{answers}: not {messages} messages")
    sample = watch.sample(messages, **failed(answers, messages))
    # Leave out the second for which each task waited at the end.
    return Sample(
        messages,
        max(answer["last"] for answer in answers) - begun,
        sample.client_cpu,
        sample.server_cpu,
        sample.requests,
        sample.figures,
    )


def depth(server: Server, messages: int, *, waiting: int) -> Sample:
    """Take one message and put one per transaction, so that the depth stays the same."""

    async def main() -> Sample:
        async with ours.opened(server) as (session, queue):
            await queue.put_many([BODY] * waiting)

            async def take_and_put() -> None:
                async with session.transaction() as tx:
                    if await tx.take(queue, timeout=30) is None:
                        raise RuntimeError("a message is missing")
                    tx.put(queue, BODY)

            with Stopwatch(server) as watch:
                await ours.spread(ours.TASKS, messages, take_and_put)
            return watch.sample(messages)

    return asyncio.run(main())


def million(server: Server, messages: int) -> Sample:
    """Start a consumer on a deep queue in shards, and measure its memory and the time to its first message."""
    name = "million"
    asyncio.run(_fill(server, name, messages, zq.QueueConfig(shards=SHARDS)))
    with (
        Consumers(server, name, "first", sessions=1, tasks=1) as consumers,
        Stopwatch(server, consumers.processes) as watch,
    ):
        consumers.signal()
        (answer,) = consumers.answers()
    ours.remove(server)
    return watch.sample(
        answer["messages"],
        waiting=messages,
        first_s=answer["seconds"],
        grown_mb=answer["grown"] / 1e6,
    )


async def _fill(server: Server, name: str, messages: int, config: zq.QueueConfig | None = None) -> None:
    async with zq.connect(server.hosts, root=ours.ROOT, session_timeout=30) as session:
        queue = session.queue(name)
        await queue.put_many([])
        if config is not None:
            await queue.configure(config)
        elif not await queue.exists():
            await queue.configure(zq.QueueConfig())
        async with asyncio.TaskGroup() as group:
            for part in range(4):
                group.create_task(queue.put_many([BODY] * (messages // 4 + (part < messages % 4))))


def _put_sized(server: Server, messages: int, *, size: int) -> Sample:
    return ours.put(server, messages, body=bytes(size), direct=True)


def sessions_name(count: int) -> str:
    """Return the name of the case with this many sessions."""
    return f"{count} session{'s' if count > 1 else ''} × {TASKS} tasks"


CASES = [
    *(Case(sessions_name(count), "sessions", 20_000, partial(sessions, count=count), rounds=3) for count in SESSIONS),
    *(
        Case(f"take one, put one, {waiting:,} waiting", "depth", MOVED, partial(depth, waiting=waiting))
        for waiting in DEPTHS
    ),
    *(
        Case(f"put, {name}", "payload", messages, partial(_put_sized, size=size))
        for name, (size, messages) in SIZES.items()
    ),
    *(
        Case(f"take + commit, {name}", "payload", messages, partial(ours.drained, drain=ours.take, body=bytes(size)))
        for name, (size, messages) in SIZES.items()
    ),
    Case("1,000,000 waiting in 64 shards", "million", MILLION, million, rounds=1),
]
