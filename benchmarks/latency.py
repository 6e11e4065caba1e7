"""The time from put to handler on an idle queue, and of a bare write at the same slow rate, with a sleeping CPU."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import aiozkqueue as zq

from . import ours, wire
from .consumer_process import STAMP
from .consumers import Consumers, failed
from .measure import BODY, Case, Sample, Server, Stopwatch
from .wire import Connection

_BASE = b"/benchmark-latency"
#: Seconds for the listeners to become idle, and for the last message to be handled.
SETTLE = 0.7


def raw_write(server: Server, messages: int, *, pace: float) -> Sample:
    """Create a znode this many times a second, and wait for each."""
    node = wire.create(_BASE + b"/item-", BODY, wire.SEQUENTIAL)
    took: list[float] = []
    with Connection(server.first) as connection:
        connection.ensure(_BASE)
        with Stopwatch(server) as watch:
            due = time.perf_counter()
            for _ in range(messages):
                due += 1 / pace
                time.sleep(max(0, due - time.perf_counter()))
                begun = time.perf_counter()
                connection.call(wire.CREATE, node)
                took.append(1000 * (time.perf_counter() - begun))
        connection.remove(_BASE)
    return watch.sample(messages, **percentiles(took))


def put_to_handler(server: Server, messages: int, *, pace: float, sessions: int) -> Sample:
    """Put this many times a second to a queue whose idle sessions, each with a listener, are in other processes."""
    name = f"latency-{sessions}"

    async def produce() -> None:
        async with zq.connect(server.hosts, root=ours.ROOT, session_timeout=30) as session:
            queue = session.queue(name)
            loop = asyncio.get_running_loop()
            due = loop.time() + SETTLE
            for _ in range(messages):
                due += 1 / pace
                await asyncio.sleep(max(0, due - loop.time()))
                await queue.put(time.monotonic_ns().to_bytes(STAMP, "big") + BODY[STAMP:])
            await asyncio.sleep(SETTLE)

    with Consumers(server, name, "listen", sessions=sessions, tasks=1) as consumers:
        consumers.signal()
        with Stopwatch(server, consumers.processes) as watch:
            asyncio.run(produce())
        consumers.signal()
        answers = consumers.answers()
    ours.remove(server)
    took = [nanoseconds / 1e6 for answer in answers for nanoseconds in answer["latencies"]]
    if len(took) != messages:
        raise RuntimeError(f"{len(took)} of {messages} messages were handled")
    return watch.sample(messages, **percentiles(took), **failed(answers, messages))


def percentiles(milliseconds: list[float]) -> dict[str, float]:
    """Return the median, the 99th percentile and the maximum."""
    in_order = sorted(milliseconds)
    at = [in_order[min(len(in_order) - 1, int(share * len(in_order)))] for share in (0.5, 0.99)]
    return {"p50_ms": at[0], "p99_ms": at[1], "max_ms": in_order[-1]}


CASES = [
    Case("raw write, 50 a second", "latency", 200, partial(raw_write, pace=50), rounds=3),
    Case("put → handler, 50 a second", "latency", 200, partial(put_to_handler, pace=50, sessions=1), rounds=3),
    Case("raw write, 100 a second", "latency", 300, partial(raw_write, pace=100), rounds=3),
    Case(
        "put → handler, 16 idle sessions, 100 a second",
        "latency",
        300,
        partial(put_to_handler, pace=100, sessions=16),
        rounds=3,
    ),
]
