"""TLS, credentials and ACLs against real servers."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.testing import Opcode, ZooKeeperProxy
from aiozkqueue.zookeeper import (
    Acl,
    Auth,
    AuthFailedError,
    Check,
    ConnectionLossError,
    Create,
    NoAuthError,
    State,
    connect,
    handshake,
)
from aiozkqueue.zookeeper.connection import UNANSWERED
from aiozkqueue.zookeeper.hosts import Ensemble, Server
from aiozkqueue.zookeeper.session import Session
from tests.integration.zookeeper.scripted_server import InOrder, Peer, ScriptedServer, connected, reply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.zookeeper.conftest import Opener, SecureServer

_ALICE = Auth.sasl("alice", 'p"ß€')


async def test_tls_connects_when_the_certificate_matches_the_host_name(
    secure_server: SecureServer, queue_root: str, opened: Opener
) -> None:
    tls = ssl.create_default_context(cafile=secure_server.authorities)
    zk = await opened(f"localhost:{secure_server.secure_port}{queue_root}", tls=tls, auth=[Auth.sasl("bob", "builder")])
    await zk.multi([Create("/a", bytes(500_000))])
    assert len((await zk.read("/a")).data) == 500_000
    connection = zk._session.connection
    assert connection is not None
    connection.abort("for the test")
    assert len((await zk.read("/a", generation=1)).data) == 500_000


async def why_not(hosts: str, tls: ssl.SSLContext | None) -> str:
    """Return why a connection fails; retry with a longer timeout if the machine was too slow to find out."""
    for timeout in (0.5, 5, 50):
        with pytest.raises(ConnectionLossError) as lost:
            await connect(hosts, tls=tls, connect_timeout=timeout)
        if "no answer" not in str(lost.value):
            break
    return str(lost.value)


async def test_tls_refuses_a_server_with_another_name_or_an_untrusted_certificate(
    secure_server: SecureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(_: object) -> list[str]:
        return ["127.0.0.1"]

    known = ssl.create_default_context(cafile=secure_server.authorities)
    with monkeypatch.context() as patched:
        # The name resolves to this server, whose certificate does not have it.
        patched.setattr("aiozkqueue.zookeeper.handshake.resolve", resolve)
        assert "not valid for 'bank.example'" in await why_not(f"bank.example:{secure_server.secure_port}", known)
    unknown = ssl.create_default_context()
    assert "CERTIFICATE_VERIFY_FAILED" in await why_not(f"localhost:{secure_server.secure_port}", unknown)


async def test_tls_to_a_plain_port_fails_in_time_with_an_error_that_names_the_likely_cause(zookeeper: str) -> None:
    with pytest.raises(ConnectionLossError, match=zookeeper):
        await connect(zookeeper, tls=ssl.create_default_context(), connect_timeout=0.7, session_timeout=1.0)
    error = await why_not(zookeeper, ssl.create_default_context())
    assert (
        f"{zookeeper}: closed during the TLS handshake: a port without TLS, or a server at its maxClientCnxns?" in error
    )


async def test_a_plain_connection_to_a_tls_port_fails_with_the_likely_cause(secure_server: SecureServer) -> None:
    error = await why_not(f"localhost:{secure_server.secure_port}", None)
    assert UNANSWERED in error


@pytest.mark.parametrize("auth", [_ALICE, Auth.sasl("bob", "builder"), Auth.digest("carol", "pw")])
async def test_an_authenticated_client_owns_the_znodes_it_creates(
    secure_server: SecureServer, queue_root: str, opened: Opener, auth: Auth
) -> None:
    owner = await opened(secure_server.hosts + queue_root, auth=[auth])
    await owner.multi([Create("/a", b"secret")])
    unauthorized = await opened(secure_server.hosts, auth=[Auth.digest("mallory", "pw")])
    with pytest.raises(NoAuthError, match=f"{queue_root}/a"):
        await unauthorized.read(f"{queue_root}/a")
    with pytest.raises(NoAuthError):
        await unauthorized.read_many([f"{queue_root}/a"])
    same_user = await opened(secure_server.hosts + queue_root, auth=[auth])
    assert (await same_user.read("/a")).data == b"secret"


async def test_created_znodes_have_the_given_acls_the_chroot_included(
    zookeeper: str, queue_root: str, opened: Opener
) -> None:
    acl = [Acl.digest("carol", "pw"), Acl.read("world", "anyone")]
    zk = await opened(zookeeper + queue_root, acl=acl, auth=[Auth.digest("carol", "pw")])
    await zk.multi([Create("/a", b"1")])
    await zk.ensure("/b/c")
    reader = await opened(zookeeper)
    assert (await reader.read(f"{queue_root}/a")).data == b"1"
    for path in ("", "/a", "/b", "/b/c"):
        with pytest.raises(Exception, match="not allowed"):
            await reader.multi([Create(f"{queue_root}{path}/x")])


@pytest.mark.parametrize("auth", [Auth.sasl("alice", "wr0ng-s3cret"), Auth("unknown-scheme", "alice", "wr0ng-s3cret")])
async def test_refused_credentials_fail_the_connect_and_are_never_shown_or_logged(
    secure_server: SecureServer, auth: Auth, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(AuthFailedError) as refused:
        await connect(secure_server.hosts, auth=[auth])
    assert "wr0ng-s3cret" not in str(refused.value) + caplog.text


async def test_sasl_at_a_server_without_sasl_is_refused_with_the_reason(zookeeper: str) -> None:
    with pytest.raises(AuthFailedError, match="SASL"):
        await connect(zookeeper, auth=[_ALICE])


@pytest.mark.parametrize(("auth", "opcode"), [(_ALICE, Opcode.SASL), (Auth.digest("carol", "pw"), Opcode.AUTH)])
async def test_each_connection_sends_the_credentials_first(
    secure_server: SecureServer, queue_root: str, opened: Opener, auth: Auth, opcode: Opcode
) -> None:
    async with ZooKeeperProxy(secure_server.hosts) as proxy:
        zk = await opened(proxy.hosts + queue_root, auth=[auth])
        await zk.multi([Create("/a", b"mine")])
        sent = proxy.requests[opcode]
        proxy.reset_connections()
        assert (await zk.read("/a", generation=1)).data == b"mine"
        assert proxy.requests[opcode] == 2 * sent
        # A connection that is lost between the credentials and their reply is tried again.
        dropped = proxy.lose_after(opcode)
        proxy.reset_connections()
        assert (await zk.read("/a", generation=1)).data == b"mine"
        assert len(dropped.requests) == 1
        await zk.close()


async def test_credentials_refused_on_a_reconnection_fail_the_client_permanently(
    secure_server: SecureServer, opened: Opener
) -> None:
    async with ZooKeeperProxy(secure_server.hosts) as proxy:
        zk = await opened(proxy.hosts, auth=[_ALICE])
        zk._session._auth = (Auth.sasl("alice", "changed"),)
        proxy.reset_connections()
        with pytest.raises(AuthFailedError):
            await zk.read("/")
        assert zk.state is State.FAILED
        for call in (zk.wait_connected(), zk.multi([Check("/")]), zk.exists("/")):
            with pytest.raises(AuthFailedError):
                await call
        await zk.close()


class Member(ScriptedServer):
    """A server of an ensemble with one session, which accepts the credentials or refuses them."""

    def __init__(self, *, accepts: bool, timeout: int = 20_000) -> None:
        super().__init__(self._join)
        self.timeout = timeout  # ms
        self.accepts = accepts
        self.refused = 0
        self.up = asyncio.Event()
        self.up.set()

    async def _join(self, peer: Peer) -> None:
        if not self.up.is_set():
            peer.drop()
            return
        await peer.asked()
        peer.send(connected(5, timeout=self.timeout))
        await peer.packet()  # the credentials
        if self.accepts:
            peer.send(reply(-4))
            await peer.keep_alive()
        else:
            self.refused += 1
            peer.send(reply(-4, error=-115))


@asynccontextmanager
async def session_of(*members: Member) -> AsyncIterator[Session]:
    servers = [Server("127.0.0.1", int(member.hosts.rpartition(":")[2])) for member in members]
    session = Session(Ensemble(tuple(servers)), timeout=20.0, auth=(Auth.digest("carol", "pw"),), jitter=InOrder())
    session.start()
    async with asyncio.timeout(50):
        await session.wait_connected()
        yield session
    session.kill()  # the members do not answer a close


async def test_a_session_continues_at_another_server_if_one_refuses_the_credentials() -> None:
    """A password is changed on one server after the other."""
    async with (
        Member(accepts=False) as changed,
        Member(accepts=True) as unchanged,
        session_of(changed, unchanged) as session,
    ):
        assert session.connection is not None
        session.connection.abort("lost")
        assert await session.wait_connected() == 1
        assert changed.refused == 2
        assert unchanged.connections == 2


async def test_a_session_waits_for_a_server_that_restarts_while_another_refuses_the_credentials(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        Member(accepts=False) as changed,
        Member(accepts=True) as unchanged,
        session_of(changed, unchanged) as session,
    ):
        assert session.connection is not None
        unchanged.up.clear()
        session.connection.abort("lost")
        while changed.refused < 4:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.01)
        unchanged.up.set()
        assert await session.wait_connected() == 1
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_session_whose_credentials_all_servers_refuse_fails_and_logs_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Member(accepts=True) as first, Member(accepts=True) as second, session_of(first, second) as session:
        first.accepts = second.accepts = False
        assert session.connection is not None
        session.connection.abort("lost")
        with pytest.raises(AuthFailedError):
            await session.wait_connected()
        assert session.state is State.FAILED
    (error,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert re.fullmatch(r"no server at .* accepts the credentials any more, so this session has failed: .*", error)


async def test_a_session_waits_for_a_server_whose_name_has_no_address_while_another_refuses_the_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known, resolve = asyncio.Event(), handshake.resolve

    async def look_up(server: Server) -> list[str]:
        if str(server) == unchanged.hosts and not known.is_set():
            raise OSError("no address")
        return await resolve(server)

    async with (
        Member(accepts=False) as changed,
        Member(accepts=True) as unchanged,
        session_of(changed, unchanged) as session,
    ):
        assert session.connection is not None
        monkeypatch.setattr(handshake, "resolve", look_up)
        session.connection.abort("lost")
        while changed.refused < 4:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.01)
        known.set()
        assert await session.wait_connected() == 1


async def test_a_session_fails_if_one_server_refuses_the_credentials_and_no_other_is_reached_in_time() -> None:
    async with (
        Member(accepts=False, timeout=2000) as changed,
        Member(accepts=True, timeout=2000) as unchanged,
        session_of(changed, unchanged) as session,
    ):
        assert session.connection is not None
        unchanged.up.clear()
        session.connection.abort("lost")
        with pytest.raises(AuthFailedError):
            await session.wait_connected()
