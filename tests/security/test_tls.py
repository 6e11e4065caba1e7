"""TLS and mutual TLS with `aiozkqueue.connect`: accepted clients, and trusted servers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import ssl
import threading
from typing import TYPE_CHECKING, Any

import pytest

import aiozkqueue as zq
from aiozkqueue.cli.connection import Connection
from aiozkqueue.session.internals import core_of
from aiozkqueue.testing import EmbeddedZooKeeper, ServerOptions, ServerTls, make_certificates
from aiozkqueue.zookeeper import RenewedContext, TlsFiles
from tests.busy_threads import busy_threads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aiozkqueue.testing import Certificates
    from aiozkqueue.zookeeper.session import Session
    from tests.cli.conftest import Cli

#: Timeouts within which a connection must be refused, seconds; on a busy machine, the first may be too short.
TIMEOUTS = (1.0, 10.0, 60.0)


async def round_trip(hosts: str, root: str, tls: ssl.SSLContext) -> None:
    async with zq.connect(hosts, root=root, session_timeout=20, tls=tls) as session:
        queue = session.queue("q")
        await queue.put(bytes(300_000))
        async with session.transaction() as tx:
            message = await tx.take(queue, timeout=30)
            assert message is not None
            assert len(message.body) == 300_000


async def refused(why: str, hosts: str, root: str, tls: ssl.SSLContext) -> None:
    """Try to connect until the error gives the reason."""
    error = ""
    for timeout in TIMEOUTS:
        with pytest.raises(zq.ConnectionLostError) as lost:
            async with zq.connect(hosts, root=root, tls=tls, connect_timeout=timeout):
                pass
        if re.search(why, error := str(lost.value)):
            return
    pytest.fail(f"{why!r} is not in {error!r}")


def append(to: Path, file: Path) -> None:
    with to.open("ab") as end:
        end.write(file.read_bytes())


@pytest.fixture(scope="module")
def strict(
    embedded_server: Callable[[ServerOptions], EmbeddedZooKeeper], certificates: Certificates
) -> EmbeddedZooKeeper:
    """A server that requires client certificates."""
    return embedded_server(ServerOptions(tls=certificates.server_tls(client_certificate=True), fsync=False))


async def test_a_queue_works_over_tls_by_name_and_by_address(
    secured: EmbeddedZooKeeper, root: str, trusting: ssl.SSLContext
) -> None:
    assert trusting.check_hostname  # enabled by default
    port = secured.node.ports.secure
    await round_trip(f"localhost:{port}", root, trusting)
    await round_trip(f"127.0.0.1:{port}", root, trusting)


async def test_a_server_with_a_certificate_for_another_name_is_refused(
    secured: EmbeddedZooKeeper, root: str, trusting: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(_: object) -> list[str]:
        return ["127.0.0.1"]

    # The name resolves to this server, whose certificate does not have it.
    monkeypatch.setattr("aiozkqueue.zookeeper.handshake.resolve", resolve)
    port = secured.node.ports.secure
    why = r"(not valid for 'bank\.example'|Hostname mismatch).*; give the servers the names"
    await refused(why, f"bank.example:{port}", root, trusting)


async def test_a_server_with_an_untrusted_certificate_is_refused(secured: EmbeddedZooKeeper, root: str) -> None:
    tls = await asyncio.to_thread(ssl.create_default_context)
    why = r"CERTIFICATE_VERIFY_FAILED.*; the context does not trust the authority"
    await refused(why, secured.secure_hosts, root, tls)


async def test_a_connection_without_tls_to_the_tls_port_fails(secured: EmbeddedZooKeeper, root: str) -> None:
    with pytest.raises(zq.ConnectionLostError):
        async with zq.connect(secured.secure_hosts, root=root, connect_timeout=TIMEOUTS[0]):
            pass


async def test_a_connection_with_tls_files_is_resumed_although_calls_of_the_program_occupy_all_threads_of_the_loop(
    secured: EmbeddedZooKeeper, root: str, certificates: Certificates
) -> None:
    tls = await asyncio.to_thread(RenewedContext, TlsFiles(certificates.authority))
    async with zq.connect(secured.secure_hosts, root=root, session_timeout=20, tls=tls) as session:
        await session.queue("q").put(b"1")
        client: Session = session._runtime.zookeeper._session  # type: ignore[attr-defined] # private to the client
        async with busy_threads():
            assert client.connection is not None
            client.connection.abort("lost")
            async with asyncio.timeout(30):
                assert await session.queue("q").size() == 1


async def test_a_session_continues_while_the_file_system_of_its_tls_files_hangs(
    secured: EmbeddedZooKeeper, root: str, certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trusted = tmp_path / "authority.pem"
    await asyncio.to_thread(shutil.copy, certificates.authority, trusted)
    tls = await asyncio.to_thread(RenewedContext, TlsFiles(trusted))
    async with zq.connect(secured.secure_hosts, root=root, session_timeout=20, tls=tls) as session:
        await session.queue("q").put(b"1")
        client = core_of(session).zookeeper
        transport = client._session  # type: ignore[attr-defined] # private to the client
        await asyncio.to_thread(trusted.unlink)
        await asyncio.to_thread(os.mkfifo, trusted)  # opening it waits for a writer, as a file server may
        for _ in range(3):
            transport.connection.abort("to connect again")
            await session.queue("q").put(b"2", timeout=60)
        assert [thread.name for thread in threading.enumerate()].count("TLS files") == 1
        assert caplog.text.count("the TLS files cannot be read in time, so the earlier ones stay in use") == 1

        await asyncio.to_thread(trusted.write_bytes, b"")  # the thread ends
        await asyncio.to_thread(trusted.unlink)
        await asyncio.to_thread(shutil.copy, certificates.authority, trusted)
        before = tls._context
        async with asyncio.timeout(60):
            while tls._context is before:
                transport.connection.abort("to connect again")
                await session.queue("q").put(b"3", timeout=60)
        assert client.generation == 1


async def test_mutual_tls_accepts_only_clients_with_a_certificate(
    strict: EmbeddedZooKeeper, root: str, certificates: Certificates, trusting: ssl.SSLContext
) -> None:
    known = await asyncio.to_thread(lambda: certificates.client_context(client_certificate=True))
    await round_trip(strict.secure_hosts, root, known)
    await refused("the server requires a client certificate: load one", strict.secure_hosts, root, trusting)


async def test_a_client_certificate_of_an_unknown_authority_is_refused(
    strict: EmbeddedZooKeeper, root: str, trusting: ssl.SSLContext, tmp_path: Path
) -> None:
    unknown = await asyncio.to_thread(make_certificates, tmp_path)
    trusting.load_cert_chain(unknown.client)
    await refused("the server rejects the client's certificate: load one", strict.secure_hosts, root, trusting)


async def test_a_server_keeps_the_last_of_several_authorities_with_the_same_subject_in_a_pem_trust_store(
    embedded_server: Callable[[ServerOptions], EmbeddedZooKeeper], certificates: Certificates, root: str, tmp_path: Path
) -> None:
    last = await asyncio.to_thread(make_certificates, tmp_path)
    trusted = tmp_path / "trusted.pem"
    for authority in (certificates.authority, last.authority):
        await asyncio.to_thread(append, trusted, authority)
    tls = ServerTls(certificates.server, trusted, client_certificate=True)
    server = await asyncio.to_thread(embedded_server, ServerOptions(tls=tls, fsync=False))
    context = await asyncio.to_thread(certificates.client_context)
    await asyncio.to_thread(context.load_cert_chain, last.client)
    await round_trip(server.secure_hosts, root, context)
    await asyncio.to_thread(context.load_cert_chain, certificates.client)
    await refused("the server rejects the client's certificate", server.secure_hosts, root, context)


async def test_a_server_that_closes_a_tls_connection_without_an_answer_is_reported_with_likely_causes(
    secured: EmbeddedZooKeeper, root: str, trusting: ssl.SSLContext
) -> None:
    """A server refuses a client that has seen newer data, as after a restore of a backup."""
    async with zq.connect(secured.secure_hosts, root=root, session_timeout=20, tls=trusting) as session:
        await session.queue("q").put(b"1")
        newer = session._runtime.zookeeper._session  # type: ignore[attr-defined] # private to the client
        newer._zxid = 2**62
        newer.connection.abort("the client has seen newer data")
        async with asyncio.timeout(30):
            while not newer._outages.attempts:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.01)
        (why,) = newer._outages.attempts.values()
        assert "closed before it answered: a server that is starting" in why


@pytest.mark.parametrize("named", [False, True], ids=["auth alone", "an acl"])
async def test_another_user_with_the_same_certificate_has_access_unless_an_acl_names_users(
    strict: EmbeddedZooKeeper, root: str, certificates: Certificates, *, named: bool
) -> None:
    shared = await asyncio.to_thread(lambda: certificates.client_context(client_certificate=True))
    alice, mallory = zq.Auth.digest("alice", "a"), zq.Auth.digest("mallory", "m")
    acl = [zq.Acl.digest("alice", "a")] if named else None
    async with zq.connect(strict.secure_hosts, root=root, tls=shared, auth=[alice], acl=acl) as session:
        await session.queue("q").put(b"1")
    async with zq.connect(strict.secure_hosts, root=root, tls=shared, auth=[mallory]) as session:
        if named:
            with pytest.raises(zq.AccessDeniedError):
                await session.queue("q").peek()
        else:
            assert [message.body for message in await session.queue("q").peek()] == [b"1"]


@pytest.mark.parametrize("fault", ["authority", "client certificate"])
def test_doctor_names_the_certificate_that_is_refused_and_the_remedy(
    strict: EmbeddedZooKeeper, certificates: Certificates, cli: Cli, tmp_path: Path, fault: str
) -> None:
    other = make_certificates(tmp_path)
    authority = other.authority if fault == "authority" else certificates.authority
    variables: dict[str, Any] = {
        "AIOZKQUEUE_HOSTS": strict.secure_hosts,
        "AIOZKQUEUE_TLS_CA": str(authority),
        "AIOZKQUEUE_TLS_CERT": str(other.client),
        "AIOZKQUEUE_CONNECT_TIMEOUT": "1",
    }
    done = cli("doctor", "--json", **variables)
    assert done.status == 3
    server, finding = [json.loads(line) for line in done.stdout.splitlines()]
    assert server["reachable"]
    assert finding["text"].startswith("a TLS connection to it fails: [SSL: ")
    remedy = "does not trust the authority" if fault == "authority" else "rejects the client's certificate"
    assert remedy in finding["advice"]


def test_the_command_accepts_the_same_certificate_files(
    strict: EmbeddedZooKeeper, certificates: Certificates, cli: Cli, root: str
) -> None:
    tls: dict[str, Any] = {
        "AIOZKQUEUE_HOSTS": strict.secure_hosts,
        "AIOZKQUEUE_ROOT": root,
        "AIOZKQUEUE_TLS_CA": str(certificates.authority),
        "AIOZKQUEUE_TLS_CERT": str(certificates.client),
        "AIOZKQUEUE_CONNECT_TIMEOUT": "60",
    }
    assert cli("put", "q", "1", **tls).status == 0
    doctor = cli("doctor", "--json", **tls)
    assert doctor.status == 0, doctor.stderr
    assert doctor.records[0]["version"].startswith("3.")  # `srvr` was sent over TLS, too


def service(server: EmbeddedZooKeeper, root: str, certificates: Certificates, certificate: Path) -> Connection:
    """Return the connection of `aiozkqueue worker` and other commands, with this client certificate."""
    return Connection(
        hosts=server.secure_hosts,
        root=root,
        session_timeout=60,
        connect_timeout=60,
        tls_ca=certificates.authority,
        tls_cert=certificate,
        tls_key=None,
        tls=False,
        auth=(),
    )


async def rejected(transport: Session) -> None:
    """Wait until a server has rejected the client's certificate."""
    async with asyncio.timeout(30):
        while "the server rejects the client's certificate" not in str(transport._outages.attempts):  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.01)


async def test_a_service_reads_its_certificate_again_when_it_connects_again(
    strict: EmbeddedZooKeeper, root: str, certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unknown = await asyncio.to_thread(make_certificates, tmp_path)
    certificate = tmp_path / "used.pem"
    await asyncio.to_thread(shutil.copy, certificates.client, certificate)
    async with service(strict, root, certificates, certificate).open() as session:
        await session.queue("q").put(b"1")
        client = core_of(session).zookeeper
        identity = client.session_id
        transport = client._session  # type: ignore[attr-defined] # private to the client

        await asyncio.to_thread(certificate.write_bytes, b"half of a certificate")
        transport.connection.abort("to connect again")
        await session.queue("q").put(b"2", timeout=60)  # with the earlier certificate
        assert "the earlier ones stay in use" in caplog.text

        await asyncio.to_thread(shutil.copy, unknown.client, certificate)
        transport.connection.abort("to connect again")
        await rejected(transport)

        await asyncio.to_thread(shutil.copy, certificates.client, certificate)
        await session.queue("q").put(b"3", timeout=60)
        assert client.session_id == identity


async def test_a_program_connects_again_with_a_certificate_loaded_into_its_context(
    strict: EmbeddedZooKeeper, root: str, certificates: Certificates, trusting: ssl.SSLContext, tmp_path: Path
) -> None:
    unknown = await asyncio.to_thread(make_certificates, tmp_path)
    trusting.load_cert_chain(certificates.client)
    async with zq.connect(strict.secure_hosts, root=root, session_timeout=60, tls=trusting) as session:
        await session.queue("q").put(b"1")
        trusting.load_cert_chain(unknown.client)
        transport = core_of(session).zookeeper._session  # type: ignore[attr-defined] # private to the client
        transport.connection.abort("to connect again")
        await rejected(transport)
        trusting.load_cert_chain(certificates.client)
        await session.queue("q").put(b"2", timeout=60)
        assert core_of(session).zookeeper.generation == 1


async def test_a_session_continues_when_its_server_restarts_with_a_certificate_of_a_new_authority(
    root: str, certificates: Certificates, trusting: ssl.SSLContext, tmp_path: Path
) -> None:
    renewed = await asyncio.to_thread(make_certificates, tmp_path)
    used = ServerTls(tmp_path / "used.pem", certificates.authority)
    await asyncio.to_thread(shutil.copy, certificates.server, used.key_and_certificate)
    async with (
        EmbeddedZooKeeper(ServerOptions(tls=used, fsync=False)) as server,
        zq.connect(server.secure_hosts, root=root, session_timeout=60, tls=trusting) as session,
    ):
        await session.queue("q").put(b"1")
        trusting.load_verify_locations(renewed.authority)
        await asyncio.to_thread(shutil.copy, renewed.server, used.key_and_certificate)
        await asyncio.to_thread(server.node.restart)
        await session.queue("q").put(b"2", timeout=60)
        assert core_of(session).zookeeper.generation == 1
