"""Passwords are in no log, repr, error, traceback or output, whatever happens to the connection."""

from __future__ import annotations

import asyncio
import gc
import logging
import traceback
from dataclasses import asdict, fields
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.cli.app import run
from aiozkqueue.testing import ZooKeeperProxy
from tests.security.conftest import ALICE_SECRET, IDENTITIES, MALLORY_SECRET, Identity, session_of
from tests.security.test_access import attempts_on, fill, use_everything

if TYPE_CHECKING:
    from aiozkqueue.testing import EmbeddedZooKeeper

SCHEMES = pytest.mark.parametrize("identity", list(IDENTITIES.values()), ids=list(IDENTITIES))


def secrets_in(text: str) -> list[str]:
    return [secret for secret in (ALICE_SECRET, MALLORY_SECRET) if secret in text]


@SCHEMES
async def test_logs_and_errors_contain_no_password(
    secured: EmbeddedZooKeeper, root: str, identity: Identity, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    outputs: list[str] = []
    async with ZooKeeperProxy(secured.hosts) as proxy:
        async with session_of(proxy.hosts, root, identity.alice) as session:
            await use_everything(session)
            await fill(session.queue("jobs"))
            proxy.reset_connections()
            await session.queue("plain").put(b"1")
            outputs += [repr(session), repr(vars(session)), repr(vars(session._runtime))]
            client = session._runtime.zookeeper
            outputs += [repr(client), repr(vars(client)), repr(vars(client._session))]  # type: ignore[attr-defined]
        async with session_of(proxy.hosts, root, identity.mallory) as unauthorized:
            for attempt in attempts_on(unauthorized, unauthorized.queue("jobs")):
                with pytest.raises(zq.AccessDeniedError) as denied:
                    await attempt()
                outputs.append("".join(traceback.format_exception(denied.value)))
    wrong = zq.Auth.sasl("alice", MALLORY_SECRET)
    with pytest.raises(zq.AccessDeniedError) as refused:
        async with session_of(secured.hosts, root, wrong):
            pass
    outputs.append("".join(traceback.format_exception(refused.value)))
    with pytest.raises(zq.ConnectionLostError) as lost:
        async with zq.connect("127.0.0.1:1", auth=[identity.alice], connect_timeout=0.3):
            pass
    outputs.append("".join(traceback.format_exception(lost.value)))
    assert len(caplog.records) > 5
    assert secrets_in(caplog.text + "".join(outputs)) == []


def test_credentials_show_no_password() -> None:
    for auth in (IDENTITIES["digest"].alice, IDENTITIES["sasl"].alice, zq.Auth("other", "u", ALICE_SECRET)):
        assert secrets_in(f"{auth!r} {auth!s} {auth}") == []
    assert secrets_in(repr(zq.Acl.digest("alice", ALICE_SECRET))) == []
    assert [field.name for field in fields(zq.Auth) if field.repr] == ["scheme", "user"]
    assert "password" in asdict(IDENTITIES["digest"].alice)  # available on explicit request
    with pytest.raises(zq.InvalidOptionError) as wrong:
        zq.Auth.digest("a:b", ALICE_SECRET)
    assert secrets_in(str(wrong.value)) == []


def test_an_unfinished_connect_shows_no_password() -> None:
    connecting = zq.connect("127.0.0.1", auth=[IDENTITIES["digest"].alice])
    assert secrets_in(repr(connecting) + repr(vars(connecting))) == []
    del connecting
    gc.collect()


async def test_logs_and_representations_contain_no_session_password(
    secured: EmbeddedZooKeeper, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with session_of(secured.hosts, root, IDENTITIES["digest"].alice) as session:
        resumable = session._runtime.zookeeper._session._resumable  # type: ignore[attr-defined]
        await session.queue("q").put(b"1")
        shown = repr(resumable) + repr(vars(session._runtime.zookeeper._session))  # type: ignore[attr-defined]
        assert repr(resumable.password)[2:-1] not in shown + caplog.text


def test_the_command_shows_no_password(
    secured: EmbeddedZooKeeper, root: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for module in ("console", "table", "text"):
        # A command imports them when it prints, which would block the loop of this process.
        import_module(f"rich.{module}")
    alice, mallory = f"digest:alice:{ALICE_SECRET}", f"digest:mallory:{MALLORY_SECRET}"
    monkeypatch.setenv("AIOZKQUEUE_HOSTS", secured.hosts)
    monkeypatch.setenv("AIOZKQUEUE_ROOT", root)
    commands = [
        ["put", "q", "1"],
        ["peek", "q"],
        ["stats", "q"],
        ["doctor"],
        ["dlq", "list", "q"],
        ["purge", "q", "-y"],
    ]
    statuses = {
        auth: [_run(command, auth, monkeypatch) for command in commands]
        for auth in (alice, mallory, f"sasl{alice}", f"digest:{ALICE_SECRET}")
    }
    assert statuses[alice] == [0, 0, 0, 0, 1, 0]
    assert statuses[mallory] == [4] * 6
    assert statuses[f"sasl{alice}"] == statuses[f"digest:{ALICE_SECRET}"] == [2] * 6
    assert _run(["stats", "--help"], alice, monkeypatch) == 0
    outputs = capfd.readouterr()
    assert "not allowed" in outputs.err
    assert secrets_in(outputs.out + outputs.err) == []


def test_the_command_authenticates_with_sasl(
    secured: EmbeddedZooKeeper, root: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIOZKQUEUE_HOSTS", secured.hosts)
    monkeypatch.setenv("AIOZKQUEUE_ROOT", root)
    assert _run(["put", "q", "1"], f"sasl:alice:{ALICE_SECRET}", monkeypatch) == 0
    assert _run(["put", "q", "1"], f"sasl:alice:{MALLORY_SECRET}", monkeypatch) == 4
    # For ZooKeeper, this is another user.
    assert _run(["put", "q", "1"], f"digest:alice:{ALICE_SECRET}", monkeypatch) == 4
    outputs = capfd.readouterr()
    assert secrets_in(outputs.out + outputs.err) == []


def _run(command: list[str], auth: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("AIOZKQUEUE_AUTH", auth)
    return run(command)


async def test_a_denied_listener_ends_at_once_and_logs_its_error_without_the_password(
    secured: EmbeddedZooKeeper, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with session_of(secured.hosts, root, IDENTITIES["digest"].alice) as session:
        await session.queue("q").put(b"1")
    async with session_of(secured.hosts, root, IDENTITIES["digest"].mallory) as unauthorized:

        async def handler(_: zq.Delivery[bytes]) -> None: ...

        with pytest.raises(zq.AccessDeniedError, match="'q'"):
            async with asyncio.timeout(60), unauthorized.listener(unauthorized.queue("q"), handler):
                await asyncio.Event().wait()
    assert secrets_in(caplog.text) == []
