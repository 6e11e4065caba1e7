"""The connection of tests that run on both the simulator and a real server: the value of `queue_server`."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aiozkqueue import connect
from aiozkqueue.arguments import required_seconds
from aiozkqueue.errors import WrongLoopError

from .simulator.cluster import Cluster, make_cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from aiozkqueue import QueueSession, Seconds

    from .clock import TestClock


class QueueServer(ABC):
    """The server of a test's sessions, with queues of the test's own. Made by the fixture `queue_server`."""

    def __init__(self, clock: TestClock) -> None:
        self._clock = clock

    @property
    def clock(self) -> TestClock:
        """The clock of all its sessions; the fixture `queue_clock`."""
        return self._clock

    @abstractmethod
    def connect(self, *, session_timeout: Seconds = 10) -> AbstractAsyncContextManager[QueueSession]:
        """Open a session: ``async with queue_server.connect() as session``. Each session acts as a separate program.

        ``session_timeout`` is in real seconds, like the timeouts of ZooKeeper's sessions; `clock` does not move it.

        Raises:
            InvalidOptionError: the timeout is out of range.
            ConnectionLostError: on entering, the real server did not answer.
            WrongLoopError: the simulator's first session was opened on another event loop.
        """


class RealServer(QueueServer):
    """A real ZooKeeper, with a separate root for the test."""

    def __init__(self, hosts: str, root: str, clock: TestClock) -> None:
        super().__init__(clock)
        self._hosts = hosts
        self._root = root

    def connect(self, *, session_timeout: Seconds = 10) -> AbstractAsyncContextManager[QueueSession]:
        """Open a session."""
        return connect(self._hosts, root=self._root, session_timeout=session_timeout, clock=self._clock)


class SimulatedServer(QueueServer):
    """The simulator, on the event loop of the first session."""

    def __init__(self, clock: TestClock) -> None:
        super().__init__(clock)
        self._cluster: Cluster | None = None

    @asynccontextmanager
    async def connect(self, *, session_timeout: Seconds = 10) -> AsyncIterator[QueueSession]:
        """Open a session."""
        if self._cluster is None:
            self._cluster = make_cluster(clock=self._clock)
        elif self._cluster.ensemble.loop is not asyncio.get_running_loop():
            msg = "the simulated server belongs to the event loop of its first session; use one loop in a test"
            raise WrongLoopError(msg)
        timeout = required_seconds(session_timeout, "session_timeout")
        async with self._cluster.connect(session_timeout=timeout) as session:
            yield session
