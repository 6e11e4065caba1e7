"""What the client's tests share: clients that are closed, sessions ended by the server, a TLS and SASL server."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from aiozkqueue.testing import ServerOptions, ServerTls
from aiozkqueue.zookeeper import ZooKeeperClient, connect
from tests.integration.zookeeper.scripted_server import close_elsewhere

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from aiozkqueue.testing import EmbeddedZooKeeper


class Opener(Protocol):
    """`aiozkqueue.zookeeper.connect`, with what it opened closed at the end of the test."""

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
    """Ends a client's session at the server, by resuming it from elsewhere and closing it there."""

    async def end(client: ZooKeeperClient) -> None:
        resumable = client._session._resumable
        assert resumable is not None
        close_elsewhere(zookeeper, resumable.session_id, resumable.password)

    return end


class SecureServer:
    """A server with TLS, SASL users and quick container collection."""

    def __init__(self, server: EmbeddedZooKeeper, authorities: Path) -> None:
        self.hosts = server.hosts
        self.secure_port = int(server.secure_hosts.rpartition(":")[2])
        self.authorities = str(authorities)


@pytest.fixture(scope="session")
def secure_server(
    embedded_server: Callable[..., EmbeddedZooKeeper], tmp_path_factory: pytest.TempPathFactory
) -> SecureServer:
    folder = tmp_path_factory.mktemp("tls")
    key_and_certificate, authorities = _certificate_for_localhost(folder)
    options = ServerOptions(
        tls=ServerTls(key_and_certificate, authorities),
        users={"alice": 'p"ß€', "bob": "builder"},
        jvm_options=["-Dznode.container.checkIntervalMs=200"],
    )
    return SecureServer(embedded_server(options), authorities)


def _certificate_for_localhost(folder: Path) -> tuple[Path, Path]:
    now = dt.datetime.now(dt.UTC)

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def certificate(
        subject: str, key: ec.EllipticCurvePrivateKey, issuer_key: ec.EllipticCurvePrivateKey, *, ca: bool
    ) -> bytes:
        built = (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("tests"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(subject)]), critical=False)
            .sign(issuer_key, hashes.SHA256())
        )
        return built.public_bytes(serialization.Encoding.PEM)

    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    authorities, both = folder / "authorities.pem", folder / "server.pem"
    authorities.write_bytes(certificate("tests", ca_key, ca_key, ca=True))
    both.write_bytes(private + certificate("localhost", key, ca_key, ca=False))
    return both, authorities
