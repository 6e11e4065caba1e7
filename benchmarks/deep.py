"""A very deep queue on one server: ``python -m benchmarks.deep --messages 1000000``.

It shows how fast the queue is filled, the server's heap for each waiting message, the time from the start of a new
session to its first message, and the rate at which one session drains the queue. The heap is measured with ``jcmd``,
which a JDK contains; it is left out if ``jcmd`` is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import subprocess
import sys
import time
from typing import NamedTuple

import aiozkqueue as zq
from aiozkqueue.testing import EmbeddedZooKeeper, ServerOptions

#: Messages per put and per take.
PUT, TAKE = 1000, 100
#: Tasks that drain the queue, and the rounds of `PUT` messages that measure the rate of a shallow queue.
TASKS, ROUNDS = 4, 30
BODY = b"x" * 100
HEAP = 2048
#: The server compiles its code as in production.
JVM = ("-XX:TieredStopAtLevel=4",)
#: The heap generations of the serial collector that hold the program's objects.
GENERATIONS = re.compile(r"^\s*(?:DefNew|Tenured)\s.*used (\d+)K", re.MULTILINE)


class Figure(NamedTuple):
    """A measured figure."""

    name: str
    measured: float
    unit: str


async def measure(server: EmbeddedZooKeeper, messages: int, bundle: int) -> list[Figure]:
    """Fill a queue, measure, and drain it."""
    async with zq.connect(server.hosts) as session:
        shallow = session.queue("shallow")
        await shallow.configure(zq.QueueConfig(bundle=bundle))
        reference = await _shallow_rate(session, shallow)
        queue = session.queue("deep")
        await queue.configure(zq.QueueConfig(bundle=bundle))
        before = await asyncio.to_thread(live_heap, server.nodes[0].pid)
        began = time.perf_counter()
        for _ in range(messages // PUT):
            await queue.put_many([BODY] * PUT)
        filled = time.perf_counter() - began
        after = await asyncio.to_thread(live_heap, server.nodes[0].pid)
    figures = [Figure("put", messages / filled, "messages/s")]
    if before is not None and after is not None:
        figures.append(Figure("heap of the server for a waiting message", (after - before) / messages, "bytes"))
    async with zq.connect(server.hosts) as session:
        queue = session.queue("deep")
        began = time.perf_counter()
        async with session.transaction() as tx:
            await tx.take(queue)
            first = time.perf_counter() - began
            await tx.commit()
        began = time.perf_counter()
        await _drain(session, queue, messages - 1)
        rate = (messages - 1) / (time.perf_counter() - began)
    return [
        *figures,
        Figure("a new session's first message", first, "s"),
        Figure("drained", rate, "messages/s"),
        Figure("drained with 1,000 waiting", reference, "messages/s"),
        Figure("ratio of the two", rate / reference, ""),
    ]


async def _shallow_rate(session: zq.QueueSession, queue: zq.Queue[bytes]) -> float:
    spent = 0.0
    for _ in range(ROUNDS):
        await queue.put_many([BODY] * PUT)
        began = time.perf_counter()
        await _drain(session, queue, PUT)
        spent += time.perf_counter() - began
    return ROUNDS * PUT / spent


async def _drain(session: zq.QueueSession, queue: zq.Queue[bytes], messages: int) -> None:
    """Take and commit this many messages."""
    left = messages

    async def work() -> None:
        nonlocal left
        while left > 0:
            share = min(TAKE, left)
            left -= share
            async with session.transaction() as tx:
                taken = await tx.take_many(queue, share)
                await tx.commit()
            left += share - len(taken)

    await asyncio.gather(*(work() for _ in range(TASKS)))


def live_heap(process: int) -> int | None:
    """Return the bytes of live objects in the server's heap; None if there is no ``jcmd``."""
    jcmd = shutil.which("jcmd")
    if jcmd is None:
        return None
    pid = str(process)
    subprocess.run([jcmd, pid, "GC.run"], check=True, capture_output=True)  # noqa: S603 - the JDK's own command
    command = [jcmd, pid, "GC.heap_info"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - the JDK's own command
    return 1024 * sum(int(used) for used in GENERATIONS.findall(shown))


def main() -> int:
    """Measure on a separate server, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000, help="messages that wait (default: 1,000,000)")
    parser.add_argument("--bundle", type=int, default=64, help="messages that a znode may hold (default: 64)")
    parser.add_argument("--heap", type=int, default=HEAP, help=f"MiB of heap of the server (default: {HEAP})")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    with EmbeddedZooKeeper(ServerOptions(heap=options.heap, jvm_options=JVM)) as server:
        figures = asyncio.run(measure(server, options.messages, options.bundle))
    if options.json:
        print(json.dumps([figure._asdict() for figure in figures]))
    else:
        for figure in figures:
            print(f"{figure.name:45} {figure.measured:12,.3f} {figure.unit}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
