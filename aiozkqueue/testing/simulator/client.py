"""The client behind the `ZooKeeper` protocol, without bytes: requests are sent as objects."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from aiozkqueue.zookeeper import wire
from aiozkqueue.zookeeper.client import PersistentWatch, ZooKeeperClient
from aiozkqueue.zookeeper.errors import MultiError, NodeExistsError, NoNodeError
from aiozkqueue.zookeeper.interface import Answer, C, Create, Node, Operation, Result, Silence, Stat, Versioned
from aiozkqueue.zookeeper.listings import Collected

from .requests import Kind, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiozkqueue.zookeeper.watches import Registration

    from .connection import SimulatedSession

#: The share of listings that are interrupted after a part.
_GIVEN_UP: Final = 0.1


class SimulatedClient(ZooKeeperClient):
    """A client of a simulated ensemble."""

    _session: SimulatedSession

    def multi(
        self, operations: Sequence[Operation], *, generation: int | None = None, results: int | None = None
    ) -> asyncio.Future[list[Result]]:
        """Send all or nothing, once, when called."""
        for operation in operations:
            _check(operation.path)
        request = Request(Kind.MULTI, tuple(operations), self.request_size(operations), results)
        return self._counted(self._submit(request, generation))

    async def check_version(self, within: float) -> None:
        """Return at once: a simulated server knows all requests."""

    async def ask_servers(self, word: str) -> dict[str, Answer]:  # noqa: ARG002 - as the base class
        """Return no answers: there is no network on virtual time, and the lookup of a name could take real time."""
        return {str(server): Silence.UNREACHABLE for server in self._session.ensemble.servers}

    async def smaller_limits(self) -> dict[str, int]:
        """Return no limits, as for servers that cannot be reached."""
        return {}

    async def read(self, path: str, *, generation: int | None = None) -> Node:
        """Return data and stat. Raises: NoNodeError."""
        node: Node = await self._call(Kind.READ, _check(path), generation)
        return node

    async def read_many(self, paths: Sequence[str], *, generation: int | None = None) -> list[Node | None]:
        """Read several znodes in one request."""
        nodes: list[Node | None] = await self._call(Kind.READ_MANY, tuple(_check(path) for path in paths), generation)
        return nodes

    async def read_versioned(self, paths: Sequence[str], *, generation: int | None = None) -> list[Versioned | None]:
        """Read several znodes in one request, with a part of their stats."""
        nodes = await self.read_many(paths, generation=generation)
        return [None if node is None else Versioned(node.data, node.stat.ctime, node.stat.version) for node in nodes]

    async def children(self, path: str, *, generation: int | None = None) -> list[str]:
        """Return the names of the children. Raises: NoNodeError."""
        names: list[str] = await self._call(Kind.CHILDREN, _check(path), generation)
        return names

    async def children_into(self, path: str, collector: Callable[[], C], *, generation: int | None = None) -> C:
        """Pass on the children's names in pieces of any size; now and then restart, as after a lost connection.

        Raises: NoNodeError.
        """
        chance = self._session.chance
        while True:
            names = await self.children(path, generation=generation)
            given_up = chance.random() < _GIVEN_UP
            stop = chance.randint(0, len(names)) if given_up else len(names)
            collected, start = Collected(collector), 0
            while start < stop:
                end = chance.randint(start + 1, stop)
                collected.take(names[start:end])
                start = end
                await asyncio.sleep(0)  # other tasks run between two pieces
            if not given_up:
                return collected.result()

    async def exists(self, path: str, *, generation: int | None = None) -> Stat | None:
        """Return the stat; None if the znode does not exist."""
        try:
            stat: Stat = await self._call(Kind.EXISTS, _check(path), generation)
        except NoNodeError:
            return None
        return stat

    async def sync(self, path: str) -> None:
        """Let the server catch up with the committed transactions."""
        await self._call(Kind.SYNC, _check(path), None)

    @property
    def session(self) -> SimulatedSession:
        """The client's session."""
        return self._session

    def _watch_of(self, registration: Registration) -> SimulatedWatch:
        return SimulatedWatch(self._session, registration)

    async def _create(self, full_path: str) -> None:
        if await self.exists(full_path) is None:
            try:
                await self.multi([Create(full_path)])
            except MultiError as refused:
                if not isinstance(refused.error, NodeExistsError):
                    raise refused.error from None

    def _submit(self, request: Request, generation: int | None) -> asyncio.Future[Any]:
        # The session forwards requests unchanged, and examines only their size.
        return self._session.submit(request, generation=generation)  # type: ignore[arg-type]

    async def _call(self, kind: Kind, argument: object, generation: int | None) -> Any:  # noqa: ANN401 - the caller knows
        return await self._session.call(Request(kind, argument), generation=generation)  # type: ignore[arg-type]


class SimulatedWatch(PersistentWatch):
    """A watch of a simulated client."""

    def _add_request(self, path: str, *, recursive: bool) -> wire.Request[None]:
        return cast("wire.Request[None]", Request(Kind.ADD_WATCH, (path, recursive)))

    def _remove_request(self, path: str) -> wire.Request[None]:
        return cast("wire.Request[None]", Request(Kind.REMOVE_WATCH, path))


def _check(path: str) -> str:
    return wire.full_path(path, "")
