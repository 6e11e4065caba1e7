"""Measures the objections of Curator's Tech Note 4 to queues on ZooKeeper: `python -m benchmarks.tech_note_4`.

It uses one embedded server with fsync, one session, and bodies of 100 bytes, and prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from typing import TYPE_CHECKING

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of, state_of
from aiozkqueue.testing import EmbeddedZooKeeper, ServerOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BODY = b"x" * 100
DEPTH = 100_000
QUEUES = 2_000
ROUNDS = 200


async def _median_ms(act: Callable[[], Awaitable[object]], rounds: int = ROUNDS) -> float:
    taken = []
    for _ in range(rounds):
        begun = time.perf_counter()
        await act()
        taken.append(time.perf_counter() - begun)
    return round(statistics.median(taken) * 1000, 2)


async def _round_trip(session: zq.QueueSession, queue: zq.Queue[bytes]) -> None:
    await queue.put(BODY)
    async with session.transaction() as tx:
        await tx.take(queue, timeout=5)


async def _data_size(session: zq.QueueSession) -> int:
    (answer,) = (await core_of(session).zookeeper.ask_servers("mntr")).values()
    text = answer if isinstance(answer, str) else ""
    lines = dict(line.split("\t", 1) for line in text.splitlines() if "\t" in line)
    return int(lines["zk_approximate_data_size"])


async def _measure(server: EmbeddedZooKeeper) -> dict[str, object]:
    figures: dict[str, object] = {"depth": DEPTH, "queues": QUEUES}
    async with zq.connect(server.hosts) as session:
        deep = session.queue("deep")
        await deep.configure(zq.QueueConfig(shards=16))
        figures["put and take, empty queue, ms"] = await _median_ms(lambda: _round_trip(session, deep))
        before = await _data_size(session)
        begun = time.perf_counter()
        await deep.put_many([BODY] * DEPTH)
        figures["fill, messages/s"] = round(DEPTH / (time.perf_counter() - begun))
        figures["server's data, bytes a message"] = round((await _data_size(session) - before) / DEPTH)
        figures["put and take, deep queue, ms"] = await _median_ms(lambda: _round_trip(session, deep))
        figures["longest listing, bytes"] = await _longest(session, deep)
        begun = time.perf_counter()
        many = [session.queue(f"q{number}") for number in range(QUEUES)]
        await asyncio.gather(*(queue.put(BODY) for queue in many))
        figures["make and put to that many queues, s"] = round(time.perf_counter() - begun, 1)
        figures["put and take, one of many queues, ms"] = await _median_ms(lambda: _round_trip(session, many[7]))
        try:
            await deep.put(b"x" * 2**20)
        except zq.MessageTooLargeError as error:
            figures["1 MiB"] = str(error)
    return figures


async def _longest(session: zq.QueueSession, queue: zq.Queue[bytes]) -> int:
    """Return the size of the longest listing of a lane on the wire; a Java client reads at most 1 MiB."""
    zookeeper, state = core_of(session).zookeeper, state_of(queue)
    listings = [await zookeeper.children(state.paths.at(lane)) for lane in state.config.lanes]
    return max(sum(len(name) + 4 for name in names) for names in listings)


async def _drain(server: EmbeddedZooKeeper) -> float:
    begun = time.perf_counter()
    async with zq.connect(server.hosts) as session:
        await session.queue("deep").purge()
        left = await session.queue("deep").size()
    if left:
        raise RuntimeError(f"{left} messages are left")
    return round(time.perf_counter() - begun, 1)


def main() -> None:
    """Measure, and print the results."""
    with EmbeddedZooKeeper(ServerOptions(jvm_options=("-XX:TieredStopAtLevel=4",))) as server:
        figures = asyncio.run(_measure(server))
        server.node.kill()
        begun = time.perf_counter()
        server.node.start()
        figures["restart with all that, s"] = round(time.perf_counter() - begun, 1)
        figures["purge of the deep queue, s"] = asyncio.run(_drain(server))
    json.dump(figures, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
