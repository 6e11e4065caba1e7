"""A second pair of eyes: what is on the server, seen by another client than the one under test.

kazoo's client has threads of its own; each question is asked in a worker thread, so that the loop goes on.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

T = TypeVar("T")


class Observer:
    """Reads, and where a test says so breaks, what is on the server. Every path is absolute."""

    def __init__(self, client: KazooClient) -> None:
        self._client = client

    async def exists(self, path: str) -> bool:
        return await self._ask(lambda: self._client.exists(path) is not None)

    async def get(self, path: str) -> bytes:
        """A znode's data. Raises: kazoo's NoNodeError."""
        return await self._ask(lambda: bytes(self._client.get(path)[0]))

    async def version(self, path: str) -> int:
        """A znode's data version. Raises: kazoo's NoNodeError."""
        return await self._ask(lambda: int(self._client.get(path)[1].version))

    async def children(self, path: str) -> list[str]:
        """The names below, sorted; none when the znode is not there."""
        return await self._ask(lambda: self._children(path))

    async def tree(self, path: str) -> dict[str, bytes]:
        """The data of a znode and of all below it, by path."""
        return await self._ask(lambda: dict(self._walk(path)))

    async def ephemerals(self, path: str) -> dict[str, int]:
        """The ephemeral znodes at and below a path, with the session that owns each."""
        return await self._ask(lambda: dict(self._owners(path)))

    async def set(self, path: str, data: bytes) -> None:
        await self._ask(lambda: self._client.set(path, data))

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        """Create a znode, and its parents; an ephemeral one lasts as long as this observer."""
        await self._ask(lambda: self._client.create(path, data, ephemeral=ephemeral, makepath=True))

    async def delete(self, path: str) -> None:
        """Delete a znode and all below it, whoever owns them."""
        await self._ask(lambda: self._client.delete(path, recursive=True))

    async def delete_at_once(self, path: str) -> None:
        """Delete a znode and all below it in one transaction, so that nobody can put something there meanwhile."""
        await self._ask(lambda: self._delete_at_once(path))

    async def until(self, condition: Callable[[], bool], timeout: float = 30.0) -> None:
        """Wait until a condition, asked in a thread, holds. Raises: TimeoutError."""
        async with asyncio.timeout(timeout):
            while not await asyncio.to_thread(condition):  # noqa: ASYNC110 -- another process fulfils it
                await asyncio.sleep(0.02)

    async def gone(self, path: str, timeout: float = 30.0) -> None:
        """Wait until a znode is not there. Raises: TimeoutError."""
        await self.until(lambda: self._client.exists(path) is None, timeout)

    async def until_there(self, path: str, timeout: float = 30.0) -> None:
        """Wait until a znode is there. Raises: TimeoutError."""
        await self.until(lambda: self._client.exists(path) is not None, timeout)

    async def _ask(self, question: Callable[[], T]) -> T:
        def ask() -> T:
            self._client.sync("/")  # the server that is asked may lag behind the one that was told
            return question()

        return await asyncio.to_thread(ask)

    def _children(self, path: str) -> list[str]:
        try:
            return sorted(self._client.get_children(path) or ())
        except NoNodeError:
            return []

    def _delete_at_once(self, path: str) -> None:
        transaction = self._client.transaction()
        for each, _ in reversed(self._walk(path)):
            transaction.delete(each)
        for result in transaction.commit():
            if isinstance(result, Exception):
                raise result

    def _walk(self, path: str) -> list[tuple[str, bytes]]:
        try:
            found = [(path, bytes(self._client.get(path)[0]))]
        except NoNodeError:
            return []
        return found + [pair for name in self._children(path) for pair in self._walk(f"{path.rstrip('/')}/{name}")]

    def _owners(self, path: str) -> list[tuple[str, int]]:
        owners = []
        for each, _ in self._walk(path):
            stat = self._client.exists(each)
            if stat is not None and stat.ephemeralOwner:
                owners.append((each, int(stat.ephemeralOwner)))
        return owners


@asynccontextmanager
async def observer(hosts: str) -> AsyncIterator[Observer]:
    """Connect another client to the server. Give it the server's own address, not a proxy's."""
    client = KazooClient(hosts, timeout=30.0)
    await asyncio.to_thread(client.start, 60)
    try:
        yield Observer(client)
    finally:
        await asyncio.to_thread(client.stop)
        await asyncio.to_thread(client.close)
