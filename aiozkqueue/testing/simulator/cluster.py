"""`simulated`: an ensemble in memory, and real sessions of this package on it."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

from aiozkqueue.layout import IdSource
from aiozkqueue.session.core import SessionCore
from aiozkqueue.session.session import QueueSession

from .client import SimulatedClient
from .connection import SimulatedSession
from .ensemble import Ensemble
from .loop import EPOCH, LoopClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiozkqueue.runtime.clock import Clock


class Cluster:
    """A simulated ensemble and its clients."""

    def __init__(self, ensemble: Ensemble, seed: int | str, clock: Clock | None = None) -> None:
        self.ensemble = ensemble
        self.clock: Clock = clock or LoopClock()
        self._seed = seed
        self._clients: dict[str, SimulatedClient] = {}

    @asynccontextmanager
    async def connect(
        self, *, root: str = "/zms", session_timeout: float = 10.0, name: str | None = None, node: str | None = None
    ) -> AsyncIterator[QueueSession]:
        """Open a `QueueSession`, as `aiozkqueue.connect` does.

        Args:
            root: the path of the queues.
            session_timeout: as for `aiozkqueue.connect`, seconds.
            name: identifies the session to the faults.
            node: the node of the session; by default, all sessions are on one node.
        """
        client = await self.client(session_timeout=session_timeout, name=name)
        random = Random(f"{self._seed} {client.session.name} ids")  # noqa: S311 - to be repeated
        # The registry entry of a real process holds its number, and a history must not depend on its digits.
        about = json.dumps({"host": "simulated", "pid": len(self._clients)}).encode()
        runtime = SessionCore(client, root, self.clock, IdSource(random.randbytes), about, node=node)
        try:
            await runtime.start()
        except BaseException:
            await client.close()
            raise
        try:
            yield QueueSession(runtime)
        finally:
            await runtime.close()

    async def client(
        self, *, session_timeout: float = 10.0, name: str | None = None, max_request: int | None = None
    ) -> SimulatedClient:
        """Open a client of the `ZooKeeper` protocol; close it when done.

        Args:
            session_timeout: the timeout of its ZooKeeper session, seconds.
            name: identifies the client to the faults.
            max_request: the maximum size of a request, bytes; None: ZooKeeper's default.
        """
        name = name or f"client-{len(self._clients) + 1}"
        session = SimulatedSession(
            self.ensemble,
            name,
            timeout=session_timeout,
            jitter=Random(f"{self._seed} {name}"),  # noqa: S311 - to be repeated
            max_request=self.ensemble.max_request if max_request is None else max_request,
        )
        client = self._clients[name] = SimulatedClient(session)
        session.start()
        try:
            await session.wait_connected()
        except BaseException:
            session.kill()
            raise
        return client

    def expire(self, name: str) -> None:
        """Expire a client's ZooKeeper session."""
        self.ensemble.expire(self._clients[name].session_id)

    def cut(self, name: str) -> None:
        """Cut a client's connection."""
        connection = self._clients[name].session.connection
        if connection is not None:
            connection.abort("cut")


def make_cluster(*, seed: int | str = 0, servers: int = 1, clock: Clock | None = None) -> Cluster:
    """Make an ensemble in memory on the running event loop. It needs no closing.

    With a ``clock``, the sessions use that clock, and the servers its date.
    """
    ensemble = Ensemble(Random(f"{seed} ensemble"), size=servers)  # noqa: S311 - to be repeated
    if clock is not None:
        ensemble.offset = clock.time() - clock.moved - EPOCH - ensemble.loop.time()
    return Cluster(ensemble, seed, clock)


@asynccontextmanager
async def simulated(*, seed: int | str = 0, servers: int = 1) -> AsyncIterator[Cluster]:
    """Make an ensemble in memory.

    Use it as ``async with simulated() as cluster, cluster.connect() as session``.

    The ensemble waits only for timers. On a virtual clock (`run_virtual`) these take no time, and one ``seed`` gives
    one history.
    """
    yield make_cluster(seed=seed, servers=servers)
