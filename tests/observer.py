"""An independent view of the server's znodes, through a client other than the one under test.

It is kazoo's client, which has its own threads; each request runs in a worker thread, so that the event loop is not
blocked.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from kazoo.protocol.states import ZnodeStat
    from kazoo.security import ACL

T = TypeVar("T")


class Observer:
    """Reads znodes, and damages them if a test needs it. All paths are absolute."""

    def __init__(self, client: KazooClient) -> None:
        self._client = client

    async def exists(self, path: str) -> bool:
        return await self._ask(lambda: self._client.exists(path) is not None)

    async def get(self, path: str) -> bytes:
        """Return the data of a znode. Raises: kazoo's NoNodeError."""
        return await self._ask(lambda: bytes(self._client.get(path)[0]))

    async def version(self, path: str) -> int:
        """Return the data version of a znode. Raises: kazoo's NoNodeError."""
        return int((await self.stat(path)).version)

    async def children(self, path: str) -> list[str]:
        """Return the names of the children, sorted; empty if the znode does not exist."""
        return await self._ask(lambda: self._children(path))

    async def tree(self, path: str) -> dict[str, bytes]:
        """Return the data of a znode and its descendants, by path."""
        return await self._ask(lambda: {each: data for each, data, _ in self._walk(path)})

    async def ephemerals(self, path: str) -> dict[str, int]:
        """Return the ephemeral znodes at and below a path, each with the session that owns it."""
        return await self._ask(
            lambda: {each: int(stat.ephemeralOwner) for each, _, stat in self._walk(path) if stat.ephemeralOwner}
        )

    async def set(self, path: str, data: bytes) -> None:
        await self._ask(lambda: self._client.set(path, data))

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        """Create a znode and its parents; an ephemeral znode exists as long as this observer."""
        await self._ask(lambda: self._client.create(path, data, ephemeral=ephemeral, makepath=True))

    async def create_many(self, paths: Iterable[str]) -> None:
        """Create znodes without data in few requests. Their parents must exist."""
        await self._ask(lambda: self._create_many(list(paths)))

    async def delete(self, path: str) -> None:
        """Delete a znode and its descendants, regardless of their owners."""
        await self._ask(lambda: self._client.delete(path, recursive=True))

    async def delete_at_once(self, path: str) -> None:
        """Delete a znode and its descendants in one transaction, so that no client can create a child meanwhile."""
        await self._ask(lambda: self._delete_at_once(path))

    async def replace(self, old: Iterable[str], new: Mapping[str, bytes]) -> None:
        """Delete znodes and create others in one transaction."""
        await self._ask(lambda: self._replace(list(old), new))

    async def stat(self, path: str) -> ZnodeStat:
        """Return the stat of a znode. Raises: kazoo's NoNodeError."""
        return await self._ask(lambda: self._client.get(path)[1])

    async def set_acl(self, path: str, acl: list[ACL]) -> None:
        """Replace the ACL of a znode."""
        await self._ask(lambda: self._client.set_acls(path, acl))

    async def authenticate(self, user: str, password: str) -> None:
        """Add credentials to the connection."""
        # Without a sync: a server answers credentials before requests that it works on, and kazoo takes their order
        # of arrival for that of the answers.
        await asyncio.to_thread(self._client.add_auth, "digest", f"{user}:{password}")

    async def until(self, condition: Callable[[], bool], timeout: float = 30.0) -> None:
        """Wait until a condition, evaluated in a thread, holds. Raises: TimeoutError."""
        async with asyncio.timeout(timeout):
            while not await asyncio.to_thread(condition):  # noqa: ASYNC110 -- another process makes it true
                await asyncio.sleep(0.02)

    async def gone(self, path: str, timeout: float = 30.0) -> None:
        """Wait until a znode does not exist. Raises: TimeoutError."""
        await self.until(lambda: self._client.exists(path) is None, timeout)

    async def until_there(self, path: str, timeout: float = 30.0) -> None:
        """Wait until a znode exists. Raises: TimeoutError."""
        await self.until(lambda: self._client.exists(path) is not None, timeout)

    async def _ask(self, question: Callable[[], T]) -> T:
        def ask() -> T:
            # The observer's server may lag behind that of the client under test. Requests are answered in order.
            self._client.sync_async("/")
            return question()

        return await asyncio.to_thread(ask)

    def _create_many(self, paths: list[str]) -> None:
        for start in range(0, len(paths), 500):
            transaction = self._client.transaction()
            for path in paths[start : start + 500]:
                transaction.create(path)
            assert not [result for result in transaction.commit() if isinstance(result, Exception)]

    def _replace(self, old: list[str], new: Mapping[str, bytes]) -> None:
        transaction = self._client.transaction()
        for path in old:
            transaction.delete(path)
        for path, data in new.items():
            transaction.create(path, data)
        assert not [result for result in transaction.commit() if isinstance(result, Exception)]

    def _children(self, path: str) -> list[str]:
        try:
            return sorted(self._client.get_children(path) or ())
        except NoNodeError:
            return []

    def _delete_at_once(self, path: str) -> None:
        transaction = self._client.transaction()
        for each, _, _ in reversed(self._walk(path)):
            transaction.delete(each)
        for result in transaction.commit():
            if isinstance(result, Exception):
                raise result

    def _walk(self, path: str) -> list[tuple[str, bytes, ZnodeStat]]:
        """Return a znode and its descendants, parents first, in two rounds of requests for each level."""
        found: list[tuple[str, bytes, ZnodeStat]] = []
        level = [path]
        while level:
            parents: list[str] = []
            for each, node in [(each, self._client.get_async(each)) for each in level]:
                with suppress(NoNodeError):
                    answer = node.get()
                    assert answer is not None
                    data, stat = answer
                    found.append((each, bytes(data), stat))
                    if stat.numChildren:
                        parents.append(each)
            level = []
            for each, names in [(each, self._client.get_children_async(each)) for each in parents]:
                with suppress(NoNodeError):
                    level += [f"{each.rstrip('/')}/{name}" for name in sorted(names.get() or ())]
        return found


@asynccontextmanager
async def observer(hosts: str) -> AsyncIterator[Observer]:
    """Connect another client to the server. Use the server's own address, not a proxy's."""
    client = KazooClient(hosts, timeout=30.0)
    await asyncio.to_thread(client.start, 60)
    try:
        yield Observer(client)
    finally:
        await asyncio.to_thread(client.stop)
        await asyncio.to_thread(client.close)
