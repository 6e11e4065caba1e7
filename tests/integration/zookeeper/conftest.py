"""The fixtures of the client tests: clients, sessions that the server ends, and a TLS and SASL server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

from aiozkqueue.testing import ServerOptions
from aiozkqueue.zookeeper import ZooKeeperClient, connect
from tests.integration.zookeeper.scripted_server import close_elsewhere

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aiozkqueue.testing import Certificates, EmbeddedZooKeeper


class Opener(Protocol):
    """Opens clients, and closes them at the end of the test."""

    async def __call__(self, hosts: str, **options: Any) -> ZooKeeperClient: ...


@pytest.fixture
async def opened() -> AsyncIterator[Opener]:
    clients = []

    async def open_client(hosts: str, **options: Any) -> ZooKeeperClient:
        client = await connect(hosts, **options)
        clients.append(client)
        return client

    yield open_client
    for client in clients:
        await client.close()


@pytest.fixture
def end_session(zookeeper: str) -> Callable[[ZooKeeperClient], Any]:
    """Ends a client's session at the server: resumes it on another connection and closes it."""

    async def end(client: ZooKeeperClient) -> None:
        resumable = client._session._resumable
        assert resumable is not None
        close_elsewhere(zookeeper, resumable.session_id, resumable.password)

    return end


class SecureServer:
    """A server with TLS, SASL users and quick container collection."""

    def __init__(self, server: EmbeddedZooKeeper, certificates: Certificates) -> None:
        self.hosts = server.hosts
        self.secure_port = int(server.secure_hosts.rpartition(":")[2])
        self.authorities = str(certificates.authority)


@pytest.fixture(scope="session")
def secure_server(embedded_server: Callable[..., EmbeddedZooKeeper], certificates: Certificates) -> SecureServer:
    options = ServerOptions(
        tls=certificates.server_tls(),
        users={"alice": 'p"ß€', "bob": "builder"},
        jvm_options=["-Dznode.container.checkIntervalMs=200"],
    )
    return SecureServer(embedded_server(options), certificates)
