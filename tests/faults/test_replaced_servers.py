"""All servers of an ensemble are replaced, one after the other, while a session works."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NewConfigNoQuorumError, ReconfigInProcessError

import aiozkqueue as zq
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import ServerOptions
from aiozkqueue.testing.configuration import Ports, write
from aiozkqueue.testing.node import EmbeddedNode
from aiozkqueue.testing.ports import free_ports
from tests.faults.account import Account
from tests.observer import observer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

OPTIONS = ServerOptions(heap=256, fsync=False, jvm_options=("-Dzookeeper.skipACL=yes",))


class Replaceable:
    """Servers with a dynamic configuration, initially three."""

    def __init__(self, folder: Path) -> None:
        free = iter(free_ports(4 * 6))
        self.ports = {number: Ports(*(next(free) for _ in range(4))) for number in range(1, 7)}
        self.hosts = ",".join(f"127.0.0.1:{ports.client}" for ports in self.ports.values())
        self.nodes: dict[int, EmbeddedNode] = {}
        self._folder = folder

    def line(self, number: int) -> str:
        """Return the line for a server in ZooKeeper's configuration."""
        ports = self.ports[number]
        return f"127.0.0.1:{ports.quorum}:{ports.election}:participant;127.0.0.1:{ports.client}"

    def launch(self, number: int, members: Iterable[int]) -> None:
        """Start the process of a server whose configuration has these members."""
        servers = {f"server.{member}": self.line(member) for member in members}
        settings = {"standaloneEnabled": "false", "reconfigEnabled": "true", **servers}
        folder = self._folder / f"node-{number}"
        known = {member: self.ports[member] for member in members}
        arguments = write(folder, replace(OPTIONS, settings=settings), number, known)
        node = EmbeddedNode(folder, number, self.ports[number], arguments, secure=False, temporary=None)
        self.nodes[number] = node
        node.launch()

    async def replace(self, client: KazooClient, new: int) -> None:
        """Add a server and remove the leader, or the first old server if a new one leads."""
        modes = {number: await asyncio.to_thread(node.mode) for number, node in self.nodes.items() if node.running}
        old = min(modes, key=lambda number: (number > 3, modes[number] != "leader", number))
        await asyncio.to_thread(self.launch, new, [*modes, new])
        await asyncio.to_thread(self.nodes[new].wait_serving, 60)
        await asyncio.to_thread(reconfigure, client, f"server.{new}=", joining=f"server.{new}={self.line(new)}")
        await asyncio.to_thread(reconfigure, client, f"server.{old}=", leaving=str(old))
        await asyncio.to_thread(self.nodes[old].stop)


def reconfigure(client: KazooClient, line: str, *, joining: str | None = None, leaving: str | None = None) -> None:
    """Change the members; this client may lose its connection before the reply, when its server changes its role."""
    retry = client.retry
    assert retry is not None
    while (line in retry(client.get, "/zookeeper/config")[0].decode()) is (joining is None):
        # The server that joins may not be ready yet, and the change before may not have ended.
        with suppress(ConnectionLoss, NewConfigNoQuorumError, ReconfigInProcessError):
            client.reconfig(joining, leaving, None)


@asynccontextmanager
async def replaceable(folder: Path) -> AsyncIterator[tuple[Replaceable, KazooClient]]:
    servers = Replaceable(folder)
    client = KazooClient(servers.hosts, timeout=30.0)
    try:
        for number in (1, 2, 3):
            await asyncio.to_thread(servers.launch, number, (1, 2, 3))
        for node in list(servers.nodes.values()):
            await asyncio.to_thread(node.wait_serving, 60)
        await asyncio.to_thread(client.start, 60)
        yield servers, client
    finally:
        await asyncio.to_thread(client.stop)
        await asyncio.to_thread(client.close)
        for node in servers.nodes.values():
            await asyncio.to_thread(node.stop)


@pytest.mark.slow  # six servers
@pytest.mark.timeout(240)
async def test_no_message_is_lost_or_repeated_while_all_servers_are_replaced(tmp_path: Path, root: str) -> None:
    stored: list[bytes] = []
    handled: Counter[bytes] = Counter()
    replaced = asyncio.Event()
    async with replaceable(tmp_path) as (servers, client):
        async with zq.connect(servers.hosts, root=root, session_timeout=20) as session:
            orders, bills = session.queue("orders"), session.queue("bills")

            async def produce() -> None:
                while not replaced.is_set():
                    body = b"%d" % len(stored)
                    await orders.put(body, timeout=30)
                    stored.append(body)
                    await asyncio.sleep(0.01)

            async def bill(delivery: zq.Delivery[bytes]) -> None:
                delivery.put(bills, delivery.body)

            async def read() -> None:
                async with bills.consume() as deliveries:
                    async for delivery in deliveries:
                        async with delivery:
                            delivery.put("read", delivery.body)
                        handled[delivery.body] += 1

            async with session.listener(orders, bill, concurrency=4), asyncio.TaskGroup() as tasks:
                producing, reading = tasks.create_task(produce()), tasks.create_task(read())
                for new in (4, 5, 6):
                    await servers.replace(client, new)
                replaced.set()
                await producing
                async with asyncio.timeout(60):
                    while handled.total() < len(stored):  # noqa: ASYNC110 - no event reports it
                        await asyncio.sleep(0.05)
                reading.cancel()
            assert core_of(session).zookeeper.generation == 1, "the session has continued on the new servers"
        async with observer(servers.hosts) as view:
            account = Account(view, root)
            assert sorted(await account.bodies("read"), key=int) == stored
            assert await account.bodies("orders") == await account.bodies("bills") == []
            assert await account.locks("orders") == await account.locks("bills") == []
    assert set(handled.values()) == {1}
