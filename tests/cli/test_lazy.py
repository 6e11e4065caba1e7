"""Each command imports only what it needs; the list of commands shows the help of each."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from aiozkqueue.cli.app import run
from aiozkqueue.cli.commands import COMMANDS
from aiozkqueue.cli.lazy import Command, Commands, imported

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

#: The maximum number of lines of a command's help in a window of 80 columns.
MOST_LINES = 40
LISTED = {command.name: command for command in COMMANDS if isinstance(command, Command)} | {
    f"{group.name} {command.name}": command
    for group in COMMANDS
    if isinstance(group, Commands)
    for command in group.members
}


@pytest.mark.parametrize("name", LISTED)
def test_a_command_is_listed_with_the_first_paragraph_of_its_help(name: str) -> None:
    first, _, _ = (imported(LISTED[name]).help or "").partition("\n\n")
    assert " ".join(first.split()) == LISTED[name].summary


@pytest.mark.parametrize("name", LISTED)
def test_the_help_of_a_command_names_each_option_in_40_lines(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run([*name.split(), "--help"])
    short = capsys.readouterr().out
    assert len(short.strip("\n").splitlines()) <= MOST_LINES, short
    assert max(map(len, short.splitlines())) <= 80
    run([*name.split(), "--help-all"])
    full = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for parameter in imported(LISTED[name]).params:
        shown = parameter.opts[0] if parameter.param_type_name == "option" else str(parameter.metavar or parameter.name)
        assert shown in short
        assert shown in full


def test_a_command_imports_no_other_command_and_no_drawing_library() -> None:
    program = "import sys; from aiozkqueue.cli.app import run; print(run(['purge', '--nope'])); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    status, *loaded = done.stdout.split()
    assert status == "2"
    assert {"aiozkqueue.cli.queues", "typer"} <= set(loaded)
    others = {command.source.partition(":")[0] for command in LISTED.values()} - {"queues"}
    assert {f"aiozkqueue.cli.{module}" for module in others} & set(loaded) == set()
    assert {"rich.console", "pyspark", "fastapi"} & set(loaded) == set()


def test_help_shows_examples_and_no_python_types(cli: Cli) -> None:
    for command in ("stats", "put", "serve", "dlq redrive"):
        text = cli(*command.split(), "--help").text
        assert "Example" in text
        assert f"$ aiozkqueue {command}" in text
        for python in ("<bool>", "list[", "[["):
            assert python not in text
