"""Connection options, credentials, and the exit status when a connection fails."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives import serialization

import aiozkqueue as zq

if TYPE_CHECKING:
    from pathlib import Path

    from aiozkqueue.testing import Certificates
    from tests.cli.conftest import Cli
    from tests.observer import Observer

COMMANDS = [
    ["demo"],
    ["put"],
    ["consume"],
    ["peek"],
    ["stats"],
    ["purge"],
    ["dlq", "list"],
    ["dlq", "redrive"],
    ["dlq", "purge"],
]
VARIABLES = {
    "--hosts": "AIOZKQUEUE_HOSTS",
    "--root": "AIOZKQUEUE_ROOT",
    "--session-timeout": "AIOZKQUEUE_SESSION_TIMEOUT",
    "--connect-timeout": "AIOZKQUEUE_CONNECT_TIMEOUT",
    "--tls-ca": "AIOZKQUEUE_TLS_CA",
    "--tls-cert": "AIOZKQUEUE_TLS_CERT",
    "--tls-key": "AIOZKQUEUE_TLS_KEY",
    "--tls": "AIOZKQUEUE_TLS",
    "--auth": "AIOZKQUEUE_AUTH",
    "--auth-file": "AIOZKQUEUE_AUTH_FILE",
}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_names_the_connection_options_of_each_command_and_help_all_explains_them(
    cli: Cli, command: list[str]
) -> None:
    short, full = cli(*command, "--help").text, cli(*command, "--help-all").text
    for option, variable in VARIABLES.items():
        assert option in short
        assert option in full
        assert variable in full
    assert "--json" in short
    assert "Exit status: 0 done" in full


def test_options_and_variables_select_the_same_queue(cli: Cli, zookeeper: str) -> None:
    cli("put", "q", "hello")
    root = cli.environment["AIOZKQUEUE_ROOT"]
    peek = cli(
        *("peek", "q", "--hosts", zookeeper, "--root", root, "--session-timeout", "5"),
        AIOZKQUEUE_HOSTS="127.0.0.1:1",
        AIOZKQUEUE_ROOT="/elsewhere",
    )
    assert peek.status == 0


def test_an_unreachable_server_exits_with_3_and_one_line_after_the_timeout(cli: Cli) -> None:
    put = cli("put", "q", "x", "--hosts", "127.0.0.1:1", "--connect-timeout", "0.5")
    assert put.status == 3
    assert len(put.stderr.splitlines()) == 1
    assert "127.0.0.1:1" in put.stderr
    assert "within 0.5 s" in put.stderr


@pytest.mark.parametrize("hosts", ["nonsense:port", ""])
def test_invalid_hosts_exit_with_2(cli: Cli, hosts: str) -> None:
    put = cli("put", "q", "x", "--hosts", hosts)
    assert put.status == 2
    assert len(put.stderr.splitlines()) == 1


async def test_a_refused_login_exits_with_4(cli: Cli, zookeeper: str, queue_root: str) -> None:
    owner = zq.Auth.digest("owner", "secret")
    async with zq.connect(zookeeper, root=queue_root, auth=[owner], acl=[zq.Acl.creator()]) as session:
        await session.queue("q").put(b"private")
    unauthorized = await asyncio.to_thread(cli, "peek", "q")
    assert unauthorized.status == 4
    assert len(unauthorized.stderr.splitlines()) == 1
    known = await asyncio.to_thread(lambda: cli("peek", "q", "--json", AIOZKQUEUE_AUTH="digest:owner:secret"))
    assert [m["body"] for m in known.records] == ["private"]


@pytest.mark.parametrize("credentials", ["hunter2", "digest:hunter2", "basic:user:hunter2"])
def test_a_password_in_the_wrong_form_is_refused_and_not_repeated(cli: Cli, credentials: str) -> None:
    put = cli("put", "q", "x", AIOZKQUEUE_AUTH=credentials)
    assert put.status == 2
    assert "digest:USER:PASSWORD" in put.stderr
    assert "hunter2" not in put.stderr


def test_invalid_certificate_files_are_refused(cli: Cli) -> None:
    assert cli("peek", "q", "--tls-ca", __file__).status == 2
    assert cli("peek", "q", "--tls-ca", "/nowhere").status == 2
    assert cli("peek", "q", "--tls-key", __file__).status == 2


def test_an_encrypted_key_is_refused_without_asking_for_its_passphrase(
    cli: Cli, certificates: Certificates, tmp_path: Path
) -> None:
    key = serialization.load_pem_private_key(certificates.client.read_bytes(), None)
    encrypted = tmp_path / "key.pem"
    protection = serialization.BestAvailableEncryption(b"secret")
    encrypted.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection))
    peek = cli("peek", "q", "--tls-cert", str(certificates.client), "--tls-key", str(encrypted))
    assert peek.status == 2
    assert "use an unencrypted key" in peek.stderr
    assert "Enter PEM" not in peek.stderr


def test_the_command_without_its_extra_says_what_to_install() -> None:
    script = "import sys; sys.modules['typer'] = None; from aiozkqueue.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "pip install 'aiozkqueue[cli" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_neither_the_package_nor_its_command_line_imports_typer_before_it_runs() -> None:
    script = "import sys, aiozkqueue, aiozkqueue.cli; sys.exit('typer' in sys.modules or 'rich' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], timeout=120, check=True)


def test_the_command_without_arguments_lists_its_commands(cli: Cli) -> None:
    shown = cli()
    assert shown.status == 0
    assert all(command[0] in shown.text for command in COMMANDS)
    assert "demo-worker" not in shown.text


def test_a_service_that_cannot_start_says_why_in_one_line(cli: Cli) -> None:
    unreachable = cli("serve", "--port", "0", "--hosts", "127.0.0.1:1", "--connect-timeout", "0.5")
    assert (unreachable.status, len(unreachable.stderr.splitlines())) == (3, 1), unreachable.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = cli("serve", "--port", port)
    assert (refused.status, len(refused.stderr.splitlines())) == (1, 1), refused.stderr
    assert f"--port {port}" in refused.stderr


async def test_a_password_with_spaces_is_taken_from_the_variable(cli: Cli, zookeeper: str, queue_root: str) -> None:
    owner = zq.Auth.digest("owner", "a pass  phrase")
    async with zq.connect(zookeeper, root=queue_root, auth=[owner], acl=[zq.Acl.creator()]) as session:
        await session.queue("q").put(b"private")
    known = await asyncio.to_thread(lambda: cli("peek", "q", "--json", AIOZKQUEUE_AUTH="digest:owner:a pass  phrase"))
    assert [m["body"] for m in known.records] == ["private"]


async def test_credentials_are_read_from_a_file_that_a_variable_or_an_option_names(
    cli: Cli, zookeeper: str, queue_root: str, tmp_path: Path
) -> None:
    owner = zq.Auth.digest("owner", "a pass phrase")
    async with zq.connect(zookeeper, root=queue_root, auth=[owner], acl=[zq.Acl.creator()]) as session:
        await session.queue("q").put(b"private")
    secret = tmp_path / "secret"
    # With the newline that editors and `echo` add.
    await asyncio.to_thread(secret.write_text, "digest:owner:a pass phrase\n")

    peek = ("peek", "q", "--json")
    option = ("--auth-file", str(secret))
    for found in (
        await asyncio.to_thread(lambda: cli(*peek, AIOZKQUEUE_AUTH_FILE=str(secret))),
        await asyncio.to_thread(cli, *peek, *option),
        await asyncio.to_thread(lambda: cli(*peek, *option, AIOZKQUEUE_AUTH="digest:mallory:wrong")),
    ):
        assert [message["body"] for message in found.records] == ["private"], found.stderr
    shown = await asyncio.to_thread(
        lambda: cli(
            *("consume", "q", "--exec", 'test -z "$AIOZKQUEUE_AUTH_FILE$AIOZKQUEUE_AUTH"'),
            AIOZKQUEUE_AUTH_FILE=str(secret),
        )
    )
    assert shown.status == 0, shown.stderr


def test_a_file_without_usable_credentials_is_refused_and_not_repeated(cli: Cli, tmp_path: Path) -> None:
    missing, empty, wrong = (tmp_path / name for name in ("missing", "empty", "wrong"))
    empty.write_text("\n")
    wrong.write_text("hunter2")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for file, reason in (
        (missing, "No such file"),
        (tmp_path, "Is a directory"),
        (empty, "is empty; write digest:USER:PASSWORD"),
        (wrong, "digest:USER:PASSWORD"),
        (binary, "is not UTF-8"),
    ):
        put = cli("put", "q", "x", AIOZKQUEUE_AUTH_FILE=str(file))
        assert (put.status, len(put.stderr.splitlines())) == (2, 1), put.stderr
        assert f"AIOZKQUEUE_AUTH_FILE {file}" in put.stderr
        assert reason in put.stderr
        assert "hunter2" not in put.stderr


def test_credentials_that_are_given_twice_are_refused(cli: Cli, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("digest:u:p")
    both = cli("put", "q", "x", AIOZKQUEUE_AUTH="digest:u:p", AIOZKQUEUE_AUTH_FILE=str(secret))
    assert (both.status, "both set" in both.stderr) == (2, True)
    options = cli("put", "q", "x", "--auth", "digest:u:p", "--auth-file", str(secret))
    assert (options.status, "not both" in options.stderr) == (2, True)


def test_a_password_sent_over_an_unencrypted_network_causes_a_warning(cli: Cli) -> None:
    arguments = ("put", "q", "x", "--hosts", "zookeeper.invalid:2181", "--connect-timeout", "0.1")
    assert "unencrypted: use --tls" in cli(*arguments, AIOZKQUEUE_AUTH="digest:u:p").stderr
    assert "unencrypted" not in cli(*arguments, AIOZKQUEUE_AUTH="sasl:u:p").stderr
    assert "unencrypted" not in cli(*arguments, "--tls", AIOZKQUEUE_AUTH="digest:u:p").stderr
    assert "unencrypted" not in cli("put", "q", "x", AIOZKQUEUE_AUTH="digest:u:p").stderr


def test_tls_with_system_certificates_refuses_a_server_without_tls(cli: Cli) -> None:
    put = cli("put", "q", "x", "--tls", "--connect-timeout", "0.5")
    assert put.status == 3
    assert "TLS" in put.stderr


async def test_errors_print_no_stored_control_characters_to_the_terminal(
    cli: Cli, server_view: Observer, queue_root: str
) -> None:
    assert not (await asyncio.to_thread(cli, "put", "q", "x")).status
    stored = json.loads(await server_view.get(f"{queue_root}/q"))
    stored.setdefault("policy", {})["kind"] = "\x1b[2Jevil\u202e"
    await server_view.set(f"{queue_root}/q", json.dumps(stored).encode())
    for command in ("peek", "put", "stats"):
        refused = await asyncio.to_thread(cli, command, "q", *(("x",) if command == "put" else ()))
        assert refused.status
        assert "evil" in refused.stderr
        assert refused.stderr.removesuffix("\n").isprintable()
