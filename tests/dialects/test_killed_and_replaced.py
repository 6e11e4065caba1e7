"""Two Curator consumers and two of ours on one queue, at different speeds, each killed and replaced twice."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from benchmarks.lock_creates import LockCreates

if TYPE_CHECKING:
    import aiozkqueue as zq
    from aiozkqueue.testing import ZooKeeperProxy
    from tests.observer import Observer

    from .conftest import Die, StartCurator
    from .peers import Curator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

MESSAGES = 5000
MOST_LOCKS_PER_MESSAGE = 1.1
#: For each of our consumers: seconds per message, and the concurrency.
OURS = [(0.01, 8), (0.02, 4)]
#: For each Curator: milliseconds per message.
CURATORS = [1, 20]
#: All consumers are killed when at most these numbers of messages are left.
KILLED_AT = [4000, 2500]


class Worker:
    """One of our processes, and the messages that it has handled."""

    def __init__(self, process: asyncio.subprocess.Process, handled: set[bytes]) -> None:
        self._process = process
        self._handled = handled
        self._reading = asyncio.create_task(self._read())

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self._handled.add(line.strip())


async def test_five_thousand_messages_are_handled_although_all_consumers_are_killed_and_replaced(
    session: zq.QueueSession,
    zookeeper_proxy: ZooKeeperProxy,
    start_curator: StartCurator,
    die: Die,
    queue_root: str,
    path: str,
    server_view: Observer,
) -> None:
    locks, bodies, handled = f"{path}-locks", {b"%d" % number for number in range(MESSAGES)}, set[bytes]()
    await session.curator_queue(path, lock_path=locks).put_many(sorted(bodies))
    creates = LockCreates(zookeeper_proxy, locks)

    async with AsyncExitStack() as stack:

        async def ours(number: int) -> Worker:
            arguments = [zookeeper_proxy.hosts, queue_root, path, locks, *map(str, OURS[number])]
            command = [sys.executable, "-m", "tests.dialects.worker", *arguments]
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            worker = Worker(process, handled)
            stack.push_async_callback(worker.kill)
            return worker

        async def theirs(number: int) -> Curator:
            curator = spare.pop()
            await curator.ask("consume", "c", "queue", path, locks, f"slow{CURATORS[number]}", 1)
            return curator

        spare = await asyncio.gather(*(start_curator() for _ in range((1 + len(KILLED_AT)) * len(CURATORS))))
        workers = [await ours(number) for number in range(len(OURS))]
        curators = [await theirs(number) for number in range(len(CURATORS))]
        for left in KILLED_AT:
            await server_view.until(lambda left=left: len(server_view._children(path)) <= left, 60)  # type: ignore[misc]
            for number, worker in enumerate(workers):
                await worker.kill()
                workers[number] = await ours(number)
            for number, curator in enumerate(curators):
                await die(curator)
                handled.update(curator.shown_and_read("c"))
                curators[number] = await theirs(number)
        await server_view.until(lambda: not server_view._children(path), 60)
        await server_view.until(lambda: not server_view._children(locks), 60)
        for curator in curators:
            handled.update(await curator.shown_until_now("c"))
    assert handled == bodies
    assert creates.count <= MOST_LOCKS_PER_MESSAGE * MESSAGES
