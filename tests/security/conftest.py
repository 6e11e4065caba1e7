"""The fixtures of the security tests: a server with TLS and users, the command, and an independent superuser."""

from __future__ import annotations

import asyncio
import os
import uuid
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

import aiozkqueue as zq
from aiozkqueue.testing import Certificates, ServerOptions
from tests.cli.conftest import Cli

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Iterator

    from kazoo.protocol.states import ZnodeStat
    from kazoo.security import ACL

    from aiozkqueue.testing import EmbeddedZooKeeper

#: Must not occur in any log, repr, error or output.
ALICE_SECRET = "al1ce-s3cret"
MALLORY_SECRET = "mall0ry-s3cret"
USERS = {"alice": ALICE_SECRET, "mallory": MALLORY_SECRET}


@dataclass(frozen=True)
class Identity:
    """A user, and an unauthorized user of the same scheme."""

    alice: zq.Auth
    mallory: zq.Auth


IDENTITIES = {
    "digest": Identity(zq.Auth.digest("alice", ALICE_SECRET), zq.Auth.digest("mallory", MALLORY_SECRET)),
    "sasl": Identity(zq.Auth.sasl("alice", ALICE_SECRET), zq.Auth.sasl("mallory", MALLORY_SECRET)),
}


@pytest.fixture(scope="session")
def secured(
    embedded_server: Callable[[ServerOptions], EmbeddedZooKeeper], certificates: Certificates
) -> EmbeddedZooKeeper:
    """A server with TLS and SASL users, and a superuser who may read everything."""
    return embedded_server(
        ServerOptions(
            tls=certificates.server_tls(),
            users=USERS,
            fsync=False,
            jvm_options=["-Dzookeeper.DigestAuthenticationProvider.superDigest=" + _digest("root", "r00t")],
        )
    )


@pytest.fixture
def cli() -> Iterator[Cli]:
    """The command, without variables for the server and the root."""
    with ExitStack() as stack:
        yield Cli(dict(os.environ), stack)


@pytest.fixture
def root() -> str:
    return f"/secure-{uuid.uuid4().hex[:12]}"


class Superuser:
    """A client that may read every znode and its ACL."""

    def __init__(self, client: KazooClient) -> None:
        self._client = client

    async def acls(self, path: str) -> dict[str, list[ACL]]:
        """Return the ACLs of a znode and of all znodes below it."""
        return await asyncio.to_thread(self._walk, path)

    async def data(self, path: str) -> dict[str, bytes]:
        return await asyncio.to_thread(lambda: {each: self._client.get(each)[0] for each in self._walk(path)})

    async def stat(self, path: str) -> ZnodeStat | None:
        return await asyncio.to_thread(self._client.exists, path)

    def _walk(self, path: str) -> dict[str, list[ACL]]:
        try:
            found = {path: self._client.get_acls(path)[0]}
            names = self._client.get_children(path)
        except NoNodeError:  # a lock that a client removed after its parent was listed
            return {}
        for name in names or ():
            found |= self._walk(f"{path}/{name}")
        return found


@pytest.fixture
async def superuser(secured: EmbeddedZooKeeper) -> AsyncIterator[Superuser]:
    client = KazooClient(secured.hosts, auth_data=[("digest", "root:r00t")])
    await asyncio.to_thread(client.start, 15)
    yield Superuser(client)
    await asyncio.to_thread(client.stop)
    await asyncio.to_thread(client.close)


@pytest.fixture
async def trusting(certificates: Certificates) -> ssl.SSLContext:
    """A TLS context that trusts the server's authority."""
    return await asyncio.to_thread(certificates.client_context)


@asynccontextmanager
async def session_of(hosts: str, root: str, *auth: zq.Auth) -> AsyncIterator[zq.QueueSession]:
    async with zq.connect(hosts, root=root, session_timeout=20, auth=auth) as session:
        yield session


def _digest(user: str, password: str) -> str:
    return zq.Acl.digest(user, password).id
