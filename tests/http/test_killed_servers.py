"""Servers on one ZooKeeper are equivalent: each can finish work that another began, even after a kill."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.http.client import FixedHosts, QueueServiceClient, ServiceError
from tests.http.conftest import polled
from tests.integration.queue.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.timeout(400)


@asynccontextmanager
async def process(hosts: str, root: str, *options: str) -> AsyncIterator[tuple[str, subprocess.Popen[bytes]]]:
    """``aiozkqueue serve``, on a free port."""
    command = [
        sys.executable,
        "-m",
        "aiozkqueue",
        "serve",
        "--hosts",
        hosts,
        "--root",
        root,
        "--port",
        "0",
        *options,
    ]
    started = await asyncio.to_thread(subprocess.Popen, command, stdout=subprocess.PIPE)
    try:
        assert started.stdout is not None
        async with asyncio.timeout(60):
            url = (await asyncio.to_thread(started.stdout.readline)).decode().strip()
        assert url.startswith("http://127.0.0.1:")
        yield url, started
    finally:
        started.kill()
        await asyncio.to_thread(started.communicate)


class Traffic:
    """Clients that send and take numbered messages, and record the responses."""

    def __init__(self, queues: QueueServiceClient) -> None:
        self._queues = queues
        self.sent: set[int] = set()  # confirmed by the service
        self.acknowledged: set[int] = set()
        self.gone: set[str] = set()  # the ids of acknowledged messages
        self.repeated: set[str] = set()  # delivered again after their acknowledgement
        self.over = False

    async def produce(self, numbers: range) -> None:
        for number in numbers:
            try:
                await self._queues.send("q", number)
            except ServiceError:
                continue
            self.sent.add(number)

    async def consume(self) -> None:
        while not self.over:
            gone_before = set(self.gone)
            try:
                messages = await self._queues.poll("q", claim_ttl=5, limit=5, wait=1)
            except ServiceError:
                continue
            ids = {message.id: int(str(message.payload)) for message in messages}
            self.repeated |= ids.keys() & gone_before
            await asyncio.sleep(random.uniform(0, 0.05))
            try:
                await self._queues.acknowledge("q", list(ids))
            except ServiceError:
                continue
            self.gone |= set(ids)
            self.acknowledged |= set(ids.values())


async def test_no_message_is_lost_when_one_of_two_servers_is_killed(zookeeper: str, queue_root: str, key: str) -> None:
    async with AsyncExitStack() as stack:
        (doomed, victim), (other, _) = [
            await stack.enter_async_context(process(zookeeper, queue_root)) for _ in range(2)
        ]
        both = await stack.enter_async_context(QueueServiceClient(FixedHosts(doomed, other), key=key, timeout=15))
        traffic = Traffic(both)
        consumers = [asyncio.create_task(traffic.consume()) for _ in range(3)]
        producers = [asyncio.create_task(traffic.produce(range(start, start + 150))) for start in (0, 1000)]
        async with asyncio.timeout(120):
            while len(traffic.sent) < 80:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.01)
        victim.send_signal(signal.SIGKILL)
        async with asyncio.timeout(120):
            await asyncio.gather(*producers)
            while not traffic.sent <= traffic.acknowledged:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.1)
        traffic.over = True
        await asyncio.gather(*consumers)
        assert len(traffic.sent) == 300, "every send succeeds while one server is left"
        assert traffic.repeated == set()
        survivor = await stack.enter_async_context(QueueServiceClient(other, key=key))
        async with asyncio.timeout(60):
            # Messages that a client sent twice, because it got no response.
            while await survivor.get_message_count("q"):
                await survivor.acknowledge("q", [message.id for message in await survivor.poll("q", wait=1)])


@pytest.mark.slow
async def test_a_message_polled_from_a_killed_server_is_acknowledged_through_another(
    zookeeper: str, queue_root: str, key: str
) -> None:
    async with AsyncExitStack() as stack:
        doomed, victim = await stack.enter_async_context(process(zookeeper, queue_root))
        other, _ = await stack.enter_async_context(process(zookeeper, queue_root))
        first = await stack.enter_async_context(QueueServiceClient(doomed, key=key))
        second = await stack.enter_async_context(QueueServiceClient(other, key=key))
        await first.send_all("q", [1, 2, 3])
        await first.send_all("moved", list(range(300)))
        claimed, *rest = await first.poll("q", claim_ttl=3600)
        reference = await first.move_async("moved", "there")
        victim.send_signal(signal.SIGKILL)
        assert await second.poll("q", wait=15) == [], "claims outlive the server that made them"
        await second.acknowledge("q", [claimed.id])
        await second.renew("q", [message.id for message in rest], claim_ttl=0)
        assert await second.poll("q") == rest
        async with asyncio.timeout(90):
            while (await second.get_move_status(reference)).status == "IN_PROGRESS":  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.1)
        assert (await second.get_move_status(reference)).status == "COMPLETE"
        assert await second.get_message_count("there") == 300
        assert await second.get_message_count("moved") == 0


async def test_serve_prints_its_address_and_stops_at_a_signal(
    zookeeper: str, queue_root: str, key: str, session: zq.QueueSession
) -> None:
    await session.queue("q").configure(zq.QueueConfig(shards=1))  # creates the queue, so that a poll waits
    async with process(zookeeper, queue_root) as (url, server), QueueServiceClient(url, key=key) as queues:
        polling = asyncio.create_task(queues.poll("q", wait=60))
        await eventually(lambda: polled(session), 30)
        server.send_signal(signal.SIGTERM)
        assert await polling == []
        async with asyncio.timeout(90):
            status = await asyncio.to_thread(server.wait)
        assert status == 0
