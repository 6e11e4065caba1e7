"""The queues over which a Curator sharder spreads its items, as users hold them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from aiozkqueue.dialects.sharding import another_shard, first_shard, is_shard
from aiozkqueue.runtime.acl_errors import translate_denials
from aiozkqueue.zookeeper import below, reads

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from aiozkqueue.arguments import Seconds
    from aiozkqueue.queue.options import PutOptions
    from aiozkqueue.zookeeper import CallLimit

    from .core import SessionCore
    from .foreign_queue import CuratorQueue

T = TypeVar("T")


class CuratorShards(Generic[T]):
    """The queues over which a Curator ``QueueSharder`` spreads its items; made by `QueueSession.curator_shards`."""

    def __init__(
        self, runtime: SessionCore, path: str, queue: Callable[[str], CuratorQueue[T]], threshold: int, max_queues: int
    ) -> None:
        self._runtime = runtime
        self._path = path
        self._queue = queue
        self._threshold = threshold
        self._max_queues = max_queues

    @property
    def _limit(self) -> CallLimit:
        """The limit of one call, which `reads` and `changes` apply."""
        return self._runtime.limit(self._path)

    @reads
    async def queues(self) -> list[CuratorQueue[T]]:
        """Return the existing shards, each as a queue; if there are none, the first one, which a put would create.

        Raises: AccessDeniedError, ConnectionLostError, SessionClosedError, WrongLoopError.
        """
        return self._queues(await self._names())

    @reads
    async def emptiest(self) -> CuratorQueue[T]:
        """Return the shard to put to next, also in a transaction: the one with the fewest items.

        If every shard holds ``threshold`` items, a new shard is returned, and its first put creates it; no shard is
        added beyond ``max_queues``. Several sessions that find all shards full at once add the same one.

        Raises: as `queues`.
        """
        names = await self._names()
        queues = self._queues(names)
        sizes = await asyncio.gather(*(queue.size() for queue in queues))
        least = min(range(len(queues)), key=sizes.__getitem__)
        if sizes[least] < self._threshold or len(queues) >= self._max_queues:
            return queues[least]
        return self._queue(f"{self._path}/{another_shard(self._path, names)}")

    async def put(self, value: T, *, timeout: Seconds | None = 0, **options: Unpack[PutOptions]) -> str:
        """Put a message to the `emptiest` shard.

        Raises: as `Queue.put`; ConnectionLostError: the shards could not be read, and nothing was put.
        """
        return await (await self.emptiest()).put(value, timeout=timeout, **options)

    @reads
    async def size(self) -> int:
        """Count the messages in all shards. Raises: as `queues`."""
        return sum(await asyncio.gather(*(queue.size() for queue in await self.queues())))

    def _queues(self, names: list[str]) -> list[CuratorQueue[T]]:
        return [self._queue(f"{self._path}/{name}") for name in names or [first_shard(self._path)]]

    async def _names(self) -> list[str]:
        """Return the names of the existing shards, sorted."""
        self._runtime.check()
        with translate_denials(self._path):
            names = await below(self._runtime.zookeeper, self._path)
        return sorted(name for name in names if is_shard(name))
