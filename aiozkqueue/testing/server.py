"""A real ZooKeeper in child processes, from PyPI's wheels only: one node, or an ensemble."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import anyio
import anyio.to_thread

from aiozkqueue.testing.configuration import Ports, ServerOptions, write
from aiozkqueue.testing.node import EmbeddedNode, PortTakenError
from aiozkqueue.testing.ports import free_ports
from aiozkqueue.testing.runtime import ServerUnavailableError

if TYPE_CHECKING:
    from types import TracebackType

# Ports are free when chosen, but another process may take one before the server binds it.
_ATTEMPTS: Final = 5
_POLL: Final = 0.02


class EmbeddedEnsemble:
    """A ZooKeeper ensemble of child processes on 127.0.0.1; they end with this process, even if it crashes.

    Use it under ``with`` or ``async with``, or call `start` and `stop`. The methods block for up to seconds;
    on an event loop use ``async with`` and ``asyncio.to_thread``.

    Args:
        size: the number of servers.
        options: the options of the servers.
        data_dir: the folder of data and logs, kept after `stop`; by default a temporary one that `stop` removes.
        port: the first server's client port, followed by those of the others; by default free ports.

    Raises: ValueError when ``size`` is less than 1.
    """

    def __init__(
        self,
        size: int = 3,
        options: ServerOptions | None = None,
        *,
        data_dir: Path | None = None,
        port: int | None = None,
    ) -> None:
        if size < 1:
            text = f"an ensemble has at least one server, not {size}"
            raise ValueError(text)
        self._size = size
        self._options = options or ServerOptions(heap=256)
        self._data_dir = data_dir
        self._port = port
        self._temporary: Path | None = None
        self._nodes: tuple[EmbeddedNode, ...] = ()
        self._changing = threading.Lock()

    @property
    def nodes(self) -> tuple[EmbeddedNode, ...]:
        """The servers, started or not. Raises: RuntimeError before `start`."""
        if not self._nodes:
            text = f"{type(self).__name__} has not been started: use it under `with` or `async with`"
            raise RuntimeError(text)
        return self._nodes

    @property
    def hosts(self) -> str:
        """The connection string of all servers."""
        return ",".join(node.hosts for node in self.nodes)

    @property
    def secure_hosts(self) -> str:
        """The connection string of all servers' TLS ports, for options with ``tls``."""
        return ",".join(node.secure_hosts for node in self.nodes)

    def start(self, timeout: float = 30.0) -> None:
        """Start all servers and wait up to ``timeout`` seconds until each serves clients.

        Raises: ServerUnavailableError when Java or the jars are missing, or the servers did not start.
        """
        with self._changing:
            if self._nodes:
                return
            for attempt in range(_ATTEMPTS):
                try:
                    self._start(timeout)
                except PortTakenError:
                    self._clear()
                    if self._port is not None or attempt == _ATTEMPTS - 1:
                        raise
                except BaseException:
                    self._clear()
                    raise
                else:
                    return

    def stop(self) -> None:
        """Stop all servers, and remove the data unless ``data_dir`` was given. Idempotent."""
        with self._changing:
            self._clear()

    def leader(self, timeout: float = 30.0) -> EmbeddedNode:
        """Return the server that leads; wait until there is one.

        Raises: ServerUnavailableError when none has been elected within ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            for node in self.nodes:
                if node.running and node.mode() in {"leader", "standalone"}:
                    return node
            if time.monotonic() > deadline:
                text = f"no leader among {self.hosts} within {timeout:g} s"
                raise ServerUnavailableError(text)
            time.sleep(_POLL)

    def followers(self) -> list[EmbeddedNode]:
        """Return the servers that currently follow a leader."""
        return [node for node in self.nodes if node.running and node.mode() == "follower"]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        try:
            await anyio.to_thread.run_sync(self.start)
        except BaseException:
            # If this is cancelled while a thread starts the servers, stop() waits for the thread.
            await self._stop_shielded()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop_shielded()

    async def _stop_shielded(self) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.stop)

    def _start(self, timeout: float) -> None:
        if self._data_dir is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="aiozkqueue-zookeeper-"))
        folder = (self._temporary or self._data_dir or Path()).resolve()
        members = self._members()
        nodes: list[EmbeddedNode] = []
        for number, ports in members.items():
            home = folder if len(members) == 1 else folder / f"node-{number}"
            arguments = write(home, self._options, number, members)
            secure = self._options.tls is not None
            nodes.append(EmbeddedNode(home, number, ports, arguments, secure=secure, temporary=self._temporary))
        self._nodes = tuple(nodes)
        for node in nodes:
            node.launch()
        deadline = time.monotonic() + timeout
        # Check all servers in each round: the live servers of an ensemble wait forever for one that could not start.
        while waiting := [node.hosts for node in nodes if not node.serves()]:
            if time.monotonic() > deadline:
                text = f"{', '.join(waiting)} of the embedded ZooKeeper did not serve within {timeout:g} s"
                raise ServerUnavailableError(text)
            time.sleep(_POLL)

    def _members(self) -> dict[int, Ports]:
        free = iter(free_ports(4 * self._size))
        members: dict[int, Ports] = {}
        for index in range(self._size):
            client, secure, quorum, election = (next(free) for _ in range(4))
            if self._port is not None:
                client = self._port + index
            members[index + 1] = Ports(client, secure, quorum, election)
        return members

    def _clear(self) -> None:
        with ExitStack() as stack:
            if self._temporary is not None:
                stack.callback(shutil.rmtree, self._temporary, ignore_errors=True)
            for node in self._nodes:
                stack.callback(node.stop)
        self._nodes = ()
        self._temporary = None


class EmbeddedZooKeeper(EmbeddedEnsemble):
    """A single ZooKeeper server in a child process: an ensemble of one, with direct access to its node."""

    def __init__(
        self, options: ServerOptions | None = None, *, data_dir: Path | None = None, port: int | None = None
    ) -> None:
        super().__init__(1, options or ServerOptions(), data_dir=data_dir, port=port)

    @property
    def node(self) -> EmbeddedNode:
        """The server: `EmbeddedNode.kill`, `pause`, `resume`, `restart`, its ports and log."""
        return self.nodes[0]
