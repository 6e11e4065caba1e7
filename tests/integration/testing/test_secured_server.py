"""TLS and SASL on the embedded server: accepted and refused clients."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.testing import Certificates, EmbeddedZooKeeper, ServerOptions
from aiozkqueue.zookeeper import Acl, Auth, AuthFailedError, Create, NoAuthError, connect
from tests.integration.testing.raw import session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REFUSED = (OSError, asyncio.IncompleteReadError)


@pytest.fixture(scope="module")
def strict(certificates: Certificates) -> Iterator[EmbeddedZooKeeper]:
    """A server that requires client certificates."""
    with EmbeddedZooKeeper(ServerOptions(tls=certificates.server_tls(client_certificate=True))) as server:
        yield server


async def test_a_client_that_trusts_the_authority_connects(
    embedded_server: Callable[[ServerOptions], EmbeddedZooKeeper], certificates: Certificates
) -> None:
    server = await asyncio.to_thread(embedded_server, ServerOptions(tls=certificates.server_tls()))
    context = await asyncio.to_thread(certificates.client_context)
    async with session(server.secure_hosts, tls=context) as client:
        assert await client.create("/by-tls") == 0
    async with session(server.hosts) as client:
        assert await client.exists("/by-tls")
    await asyncio.to_thread(server.stop)


async def test_a_client_with_the_required_certificate_connects(
    strict: EmbeddedZooKeeper, certificates: Certificates
) -> None:
    context = await asyncio.to_thread(lambda: certificates.client_context(client_certificate=True))
    async with session(strict.secure_hosts, tls=context) as client:
        assert await client.create("/by-certificate") == 0


async def test_a_client_without_the_required_certificate_is_refused(
    strict: EmbeddedZooKeeper, certificates: Certificates
) -> None:
    context = await asyncio.to_thread(certificates.client_context)
    with pytest.raises(REFUSED):
        await session(strict.secure_hosts, tls=context).__aenter__()


async def test_a_client_that_trusts_another_authority_refuses_the_server(strict: EmbeddedZooKeeper) -> None:
    context = await asyncio.to_thread(ssl.create_default_context)
    with pytest.raises(ssl.SSLCertVerificationError):
        await session(strict.secure_hosts, tls=context).__aenter__()


async def test_a_client_without_tls_is_refused_on_the_tls_port(strict: EmbeddedZooKeeper) -> None:
    with pytest.raises(REFUSED):
        await session(strict.secure_hosts).__aenter__()


async def test_sasl_accepts_only_users_with_the_right_password(
    embedded_server: Callable[[ServerOptions], EmbeddedZooKeeper],
) -> None:
    users = {"ann": 'pass"word', "bob": "other"}
    server = await asyncio.to_thread(embedded_server, ServerOptions(users=users))
    ann = await connect(server.hosts, auth=[Auth.sasl("ann", 'pass"word')], acl=[Acl.creator()])
    await ann.multi([Create("/of-ann")])
    await ann.close()

    bob = await connect(server.hosts, auth=[Auth.sasl("bob", "other")])
    with pytest.raises(NoAuthError):
        await bob.read("/of-ann")
    await bob.close()

    with pytest.raises(AuthFailedError):
        await connect(server.hosts, auth=[Auth.sasl("ann", "wrong")])
    await asyncio.to_thread(server.stop)
