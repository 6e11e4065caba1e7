"""A process of consumers: a line on stdin starts or stops it, and it answers on stdout with one JSON object per line.

python -m benchmarks.consumer_process HOSTS QUEUE take|listen|first SESSIONS TASKS
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import psutil

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of, state_of
from aiozkqueue.worker import settled_heap

from .alike import default_loop, use_loop
from .ours import ROOT

if TYPE_CHECKING:
    from aiozkqueue.queue.claim.claimer import ClaimCounts

#: A take that waits longer than this has found the queue empty.
EMPTY = 1.0
#: The number of messages that `first` takes after the first one, so that the process has used its memory.
AFTER_FIRST = 2_000
#: The bytes at the start of a latency message: the time of its put in nanoseconds of the monotonic clock.
STAMP = 8


async def take(sessions: list[zq.QueueSession], queue: str, tasks: int) -> dict[str, object]:
    """Take and commit from this many tasks per session, until the queue is empty."""
    last = [0.0]
    taken = [0]

    async def work(session: zq.QueueSession) -> None:
        ours = session.queue(queue)
        while True:
            async with session.transaction() as tx:
                if await tx.take(ours, timeout=EMPTY) is None:
                    return
            last[0] = time.monotonic()
            taken[0] += 1

    async with asyncio.TaskGroup() as group:
        for session in sessions:
            for _ in range(tasks):
                group.create_task(work(session))
    return {"messages": taken[0], "last": last[0]}


async def listen(sessions: list[zq.QueueSession], queue: str, tasks: int) -> dict[str, object]:
    """Listen until stopped, and record each message's time from its put to its handler."""
    latencies: list[int] = []

    async def handler(delivery: zq.Delivery[bytes]) -> None:
        latencies.append(time.monotonic_ns() - int.from_bytes(delivery.body[:STAMP], "big"))

    listeners = [session.listener(session.queue(queue), handler, concurrency=tasks) for session in sessions]
    async with AsyncExitStack() as stack:
        for listener in listeners:
            await stack.enter_async_context(listener)
        await asyncio.to_thread(sys.stdin.readline)
        for listener in listeners:
            listener.stop()
    return {"messages": len(latencies), "latencies": latencies}


async def first(sessions: list[zq.QueueSession], queue: str, tasks: int) -> dict[str, object]:  # noqa: ARG001 - the signature of `take`
    """Measure the time from `consume` to the first message, and the memory for it and the following messages."""
    process = psutil.Process()
    before = process.memory_info().rss
    begun = time.monotonic()
    seconds, seen = 0.0, 0
    async with sessions[0].queue(queue).consume() as deliveries:
        async for _ in deliveries:
            seconds = seconds or time.monotonic() - begun
            seen += 1
            if seen == AFTER_FIRST:
                deliveries.stop()
    return {"messages": seen, "seconds": seconds, "grown": process.memory_info().rss - before}


async def main(hosts: str, queue: str, mode: str, sessions: int, tasks: int) -> None:
    """Open the sessions, report ready, wait for the start, run, and report the results."""
    async with AsyncExitStack() as stack:
        opened: list[zq.QueueSession] = []
        for _ in range(sessions):
            session = await stack.enter_async_context(zq.connect(hosts, root=ROOT, session_timeout=30))
            if mode != "first":
                async with session.transaction() as tx:
                    await tx.take(session.queue(queue))  # opens the empty queue and registers the consumer
            opened.append(session)
        stack.enter_context(settled_heap())
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        answer = await {"take": take, "listen": listen, "first": first}[mode](opened, queue, tasks)
        print(json.dumps(answer | {"counts": sums([counts_of(session, queue) for session in opened])}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)


def counts_of(session: zq.QueueSession, queue: str) -> ClaimCounts:
    """Return the results of the session's claims on a queue."""
    ours = session.queue(queue)
    return core_of(ours).dispatcher(state_of(ours)).counts


def sums(counts: list[ClaimCounts]) -> dict[str, int]:
    """Add two results."""
    names = ("batches", "contended", "contended_locks", "gone")
    return {name: sum(getattr(each, name) for each in counts) for name in names}


if __name__ == "__main__":
    _, _hosts, _queue, _mode, _sessions, _tasks = sys.argv
    use_loop(default_loop())
    asyncio.run(main(_hosts, _queue, _mode, int(_sessions), int(_tasks)))
