"""Each command imports only what it needs; the list of commands shows the help of each."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.cli.commands import COMMANDS
from aiozkqueue.cli.lazy import Command, Commands, imported

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

LISTED = {one.name: one for one in COMMANDS if isinstance(one, Command)} | {
    f"{group.name} {one.name}": one for group in COMMANDS if isinstance(group, Commands) for one in group.members
}


@pytest.mark.parametrize("name", LISTED)
def test_a_command_is_listed_with_the_first_paragraph_of_its_help(name: str) -> None:
    first, _, _ = (imported(LISTED[name]).help or "").partition("\n\n")
    assert " ".join(first.split()) == LISTED[name].summary


def test_a_command_imports_no_other_command_and_no_drawing_library() -> None:
    program = "import sys; from aiozkqueue.cli.app import run; print(run(['purge', '--nope'])); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    status, *loaded = done.stdout.split()
    assert status == "2"
    assert {"aiozkqueue.cli.queues", "typer"} <= set(loaded)
    others = {one.source.partition(":")[0] for one in LISTED.values()} - {"queues"}
    assert {f"aiozkqueue.cli.{module}" for module in others} & set(loaded) == set()
    assert {"rich.console", "pyspark", "fastapi"} & set(loaded) == set()


def test_help_shows_examples_and_no_python_types(cli: Cli) -> None:
    for command in ("stats", "put", "serve", "dlq redrive"):
        text = cli(*command.split(), "--help").text
        assert "Example" in text
        assert f"$ aiozkqueue {command}" in text
        for python in ("<bool>", "list[", "[["):
            assert python not in text
