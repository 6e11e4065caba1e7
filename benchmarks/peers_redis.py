"""SAQ, a queue for asyncio on Redis. Every write is on disk before it is acknowledged, as with ZooKeeper."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import tempfile
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import psutil
from redis.asyncio import Redis
from redis.exceptions import RedisError
from saq import Worker
from saq.queue.redis import RedisQueue

from aiozkqueue.testing.ports import free_ports
from aiozkqueue.worker import settled_heap

from .absent import AbsentError
from .measure import BODY, Case, Sample, cpu_of

if TYPE_CHECKING:
    from types import TracebackType

    from .measure import Server

#: Concurrent jobs. More would not be faster: its worker finishes each job with several round trips.
CONCURRENCY = 64


class LocalRedis:
    """A separate redis-server, started on first use."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="aiozkqueue-redis-")
        self._port = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def put(self, server: Server, messages: int) -> Sample:  # noqa: ARG002 - Redis has no such server
        """Enqueue jobs."""

        async def main() -> Sample:
            queue = await self._queue()
            sample = await self._watch(messages, partial(self._enqueue, queue, messages))
            await queue.disconnect()
            return sample

        return asyncio.run(main())

    def work(self, server: Server, messages: int) -> Sample:  # noqa: ARG002 - Redis has no such server
        """Process empty jobs."""

        async def main() -> Sample:
            queue = await self._queue()
            await self._enqueue(queue, messages)
            finished = asyncio.Event()
            left = messages

            async def after(_: Any) -> None:  # noqa: ANN401 - the worker passes values of any type
                nonlocal left
                left -= 1
                if not left:
                    finished.set()

            worker: Worker[Any] = Worker(
                queue, [handle], concurrency=CONCURRENCY, after_process=after, shutdown_grace_period_s=1
            )
            worker.SIGNALS = []

            running: list[asyncio.Task[None]] = []

            async def drain() -> None:
                running.append(asyncio.create_task(worker.start()))
                await finished.wait()

            sample = await self._watch(messages, drain)
            worker.event.set()
            await asyncio.gather(*running)
            await queue.disconnect()
            return sample

        return asyncio.run(main())

    async def _enqueue(self, queue: RedisQueue, messages: int) -> None:
        left = iter(range(messages))

        async def enqueue() -> None:
            for _ in left:
                await queue.enqueue("handle", body=BODY.decode("latin-1"))

        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENCY):
                group.create_task(enqueue())

    async def _watch(self, messages: int, run: Any) -> Sample:  # noqa: ANN401 - a coroutine function
        assert self._process is not None  # noqa: S101 - `_queue` has started it
        redis = [psutil.Process(self._process.pid)]
        with settled_heap():
            client, server, begun = time.process_time(), cpu_of(redis), time.perf_counter()
            await run()
            seconds = time.perf_counter() - begun
        return Sample(messages, seconds, time.process_time() - client, cpu_of(redis) - server, 0)

    async def _queue(self) -> RedisQueue:
        logging.getLogger("saq").setLevel(logging.ERROR)
        self._start()
        redis = Redis(port=self._port)
        for _ in range(200):
            try:
                await redis.flushall()
            except RedisError:
                await asyncio.sleep(0.02)
            else:
                return RedisQueue(redis, "benchmark", max_concurrent_ops=CONCURRENCY)
        raise AbsentError("redis-server does not answer")

    def _start(self) -> None:
        if self._process is not None:
            return
        executable = shutil.which("redis-server")
        if executable is None:
            raise AbsentError("no redis-server on PATH (apt-get install redis-server)")
        (self._port,) = free_ports(1)
        options = ["--port", str(self._port), "--bind", "127.0.0.1", "--dir", self._folder.name, "--save", ""]
        durable = ["--appendonly", "yes", "--appendfsync", "always"]
        self._process = subprocess.Popen([executable, *options, *durable], stdout=subprocess.DEVNULL)  # noqa: S603 - the redis-server that was found


async def handle(_: Any, *, body: str) -> None:  # noqa: ANN401 - the worker passes values of any type
    """Do nothing."""
    del body


def cases(redis: LocalRedis) -> list[Case]:
    """The measured cases of SAQ."""
    return [
        Case("SAQ on Redis: enqueue", "put", 3_000, redis.put),
        Case("SAQ on Redis: no-op jobs", "listener", 2_000, redis.work),
    ]
