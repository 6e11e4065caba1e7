"""Shell completion: words and names for bash, zsh and fish, from a process without slow imports."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.layout import DELETED
from aiozkqueue.layout.buses import buses_base
from aiozkqueue.layout.jobs import SchedulePaths
from aiozkqueue_completion import servers
from tests.cli.completion_table import TABLE, table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Cli

    Complete = Callable[..., list[str]]

#: Modules that take too long to import for a completion.
SLOW = ("aiozkqueue.errors", "asyncio", "pydantic", "rich", "typer")
#: The maximum processor time of a whole process, seconds.
LIMIT = 0.3
#: A program of each shell that prints its completion of ``aiozkqueue put o``.
PROGRAMS = {
    "bash": """
        source ./script
        COMP_WORDS=(aiozkqueue put o)
        COMP_CWORD=2
        _aiozkqueue_completion aiozkqueue
        echo "${COMPREPLY[@]}"
    """,
    "zsh": """
        compdef() { }
        _arguments() { print -r -- $@ }
        source ./script
        words=(aiozkqueue put o)
        CURRENT=3
        _aiozkqueue_completion
    """,
    "fish": """
        source ./script
        complete -C "aiozkqueue put o"
    """,
}


@pytest.fixture
def complete(cli: Cli) -> Complete:
    """Returns the completions of a command line, as bash requests them; its last word is incomplete."""

    def ask(*words: str, **variables: str) -> list[str]:
        asked = {"_AIOZKQUEUE_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(("aiozkqueue", *words))}
        asked["COMP_CWORD"] = str(len(words))
        done = subprocess.run(
            [sys.executable, "-m", "aiozkqueue_completion"],
            env=cli.environment | asked | variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout.split("\n") if done.stdout else []

    return ask


@pytest.fixture
def stored(cli: Cli) -> None:
    """Store queues, one of which is deleted, and a job."""
    for queue in ("orders", "outbox", "orders-old", "invoices"):
        assert cli("put", queue, "1").status == 0
    assert cli("delete", "orders-old", "--yes", "--force").status == 0
    assert cli("jobs", "add", "nightly", "@daily", "orders").status == 0


def test_the_table_has_every_command_and_option() -> None:
    assert json.loads(TABLE.read_bytes()) == table(), "run: python -m tests.cli.completion_table"


def test_names_are_read_where_they_are_stored() -> None:
    assert servers.DELETED == DELETED
    places = {"queue": "/zms", "job": SchedulePaths("/zms").base, "bus": buses_base("/zms")}
    assert places == {kind: f"/zms{place}" for kind, place in servers.PLACES.items()}


def test_commands_options_and_values_are_completed_without_a_server(complete: Complete) -> None:
    away = {"AIOZKQUEUE_HOSTS": "127.0.0.1:1"}
    assert complete("qu", **away) == ["queues"]
    assert complete("dlq", "re", **away) == ["redrive"]
    assert complete("put", "orders", "--un", **away) == ["--unique", "--unlocked"]
    assert complete("put", "orders", "--unique", "", **away) == ["raise", "ignore"]
    assert complete("put", "orders", "--unique", "=", **away) == ["raise", "ignore"]
    assert complete("put", "orders", "--unique", "=", "ra", **away) == ["raise"]
    assert complete("put", "orders", "--unique", "raise", "--un", **away) == ["--unlocked"]
    assert complete("put", "--tag", "a=b", "--ta", **away) == ["--tag"]
    assert complete("nope", "", **away) == []
    assert complete("put", "", **away) == []


@pytest.mark.usefixtures("stored")
def test_names_of_queues_and_jobs_are_completed(complete: Complete) -> None:
    assert complete("put", "o") == ["orders", "outbox"]
    assert complete("stats", "orders", "") == ["invoices", "outbox"]
    assert complete("move", "orders", "i") == ["invoices"]
    assert complete("dlq", "redrive", "orders", "--into", "in") == ["invoices"]
    assert complete("jobs", "pause", "") == ["nightly"]
    assert complete("put", "orders", "o") == []
    assert complete("put", "--root", "/elsewhere", "o") == []


async def test_names_that_only_some_may_list_need_their_credentials(
    complete: Complete, zookeeper: str, queue_root: str, tmp_path: Path
) -> None:
    owner = zq.Auth.digest("owner", "a pass phrase")
    async with zq.connect(zookeeper, root=queue_root, auth=[owner], acl=[zq.Acl.creator()]) as session:
        await session.queue("secret").put(b"1")

    assert await asyncio.to_thread(complete, "put", "s") == []
    assert await asyncio.to_thread(complete, "put", "--auth", "digest:owner:a pass phrase", "s") == ["secret"]
    credentials = "sasl:u:p digest:owner:a pass phrase"
    assert await asyncio.to_thread(lambda: complete("put", "s", AIOZKQUEUE_AUTH=credentials)) == ["secret"]
    file = tmp_path / "credentials"
    await asyncio.to_thread(file.write_text, f"{credentials}\n")
    assert await asyncio.to_thread(lambda: complete("put", "s", AIOZKQUEUE_AUTH_FILE=str(file))) == ["secret"]
    assert await asyncio.to_thread(complete, "put", "--auth-file", str(file), "s") == ["secret"]
    assert await asyncio.to_thread(complete, "put", "--auth-file", f"{file}-missing", "s") == []


def test_a_completion_gives_up_on_a_server_that_never_answers(complete: Complete) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert complete("put", "o", AIOZKQUEUE_HOSTS=f"127.0.0.1:{silent.getsockname()[1]}") == []


@pytest.mark.usefixtures("stored")
def test_a_completion_imports_nothing_slow_and_costs_less_than_a_third_of_a_second(complete: Complete) -> None:
    def cost() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        answer = complete("put", "o")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if not answer:  # no answer in time, on a busy machine
            return float("inf")
        assert answer == ["orders", "outbox"]
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(cost() for _ in range(5)) < LIMIT
    program = (
        "import sys, aiozkqueue_completion.servers, aiozkqueue_completion.shells as s\n"
        "s.candidates(['put'], 'o', {'AIOZKQUEUE_HOSTS': '127.0.0.1:1'})\n"
        f"sys.exit(' '.join(sys.modules.keys() & set({SLOW!r})) or 0)"
    )
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)


@pytest.fixture
def folder(tmp_path: Path, cli: Cli) -> Path:
    """A folder that contains the program, as on the PATH of users."""
    program = tmp_path / "aiozkqueue"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m aiozkqueue_completion "$@"\n')
    program.chmod(0o755)
    cli.environment["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    return tmp_path


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("shell", PROGRAMS)
def test_the_shell_itself_completes_a_name(cli: Cli, folder: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} is installed")

    def output(*command: str, **variables: str) -> str:
        return subprocess.run(
            command,
            env=cli.environment | {"HOME": str(folder)} | variables,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout

    (folder / "script").write_text(output("aiozkqueue", _AIOZKQUEUE_COMPLETE=f"source_{shell}"))
    completed = output(shell, "-c", PROGRAMS[shell])
    assert {"orders", "outbox"} <= set(re.sub(r'["()]', " ", completed).split())
    assert "invoices" not in completed
