"""ZooKeeper as a session on a moved clock sees it: timestamps are as far ahead as the clock was at the time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiozkqueue.zookeeper import Node, Stat, Versioned

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Sequence

    from aiozkqueue.zookeeper import Operation, Result, ZooKeeper


class MovedZooKeeper:
    """A client that maps the times of its stats with ``seen`` and passes everything else through."""

    def __init__(self, zookeeper: ZooKeeper, seen: Callable[[int], int]) -> None:
        self._zookeeper = zookeeper
        self._seen = seen

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the client
        return getattr(self._zookeeper, name)

    def multi(
        self, operations: Sequence[Operation], *, generation: int | None = None, results: int | None = None
    ) -> Awaitable[list[Result]]:
        """See `ZooKeeper.multi`: the request is sent when this is called."""
        return _Mapped(self._zookeeper.multi(operations, generation=generation, results=results), self._stat)

    async def read(self, path: str, *, generation: int | None = None) -> Node:
        """See `ZooKeeper.read`."""
        return self._node(await self._zookeeper.read(path, generation=generation))

    async def read_many(self, paths: Sequence[str], *, generation: int | None = None) -> list[Node | None]:
        """See `ZooKeeper.read_many`."""
        nodes = await self._zookeeper.read_many(paths, generation=generation)
        return [None if node is None else self._node(node) for node in nodes]

    async def read_versioned(self, paths: Sequence[str], *, generation: int | None = None) -> list[Versioned | None]:
        """See `ZooKeeper.read_versioned`."""
        nodes = await self._zookeeper.read_versioned(paths, generation=generation)
        return [None if node is None else Versioned(node[0], self._seen(node[1]), node[2]) for node in nodes]

    async def exists(self, path: str, *, generation: int | None = None) -> Stat | None:
        """See `ZooKeeper.exists`."""
        stat = await self._zookeeper.exists(path, generation=generation)
        return None if stat is None else self._stat(stat)

    def _node(self, node: Node) -> Node:
        return Node(node.data, self._stat(node.stat))

    def _stat(self, stat: Stat) -> Stat:
        return stat._replace(ctime=self._seen(stat.ctime), mtime=self._seen(stat.mtime))


class _Mapped:
    """Map the stats among the results of a multi; the results survive when the caller does not wait for them."""

    def __init__(self, answer: Awaitable[list[Result]], stat: Callable[[Stat], Stat]) -> None:
        self._answer = answer
        self._stat = stat

    def __await__(self) -> Generator[Any, Any, list[Result]]:
        results = yield from self._answer.__await__()
        return [self._stat(result) if isinstance(result, Stat) else result for result in results]
