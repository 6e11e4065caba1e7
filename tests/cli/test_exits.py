"""The error that a user sees, and its exit status."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.cli.app import run
from aiozkqueue.cli.exits import CommandFailedError, Exit, expected, status_of
from aiozkqueue.errors import ConfigConflictError, InvalidNameError
from tests.cli.conftest import NEW_PROCESS
from tests.complaints import complaints

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CommandFailedError("worker-2 ended"), Exit.NOTHING),
        (FileNotFoundError("no such file"), Exit.NOTHING),
        (InvalidNameError("no name"), Exit.USAGE),
        (zq.MessageTooLargeError("too large"), Exit.USAGE),
        (zq.ConnectionLostError("nobody answers"), Exit.NO_CONNECTION),
        (zq.AccessDeniedError("refused"), Exit.REFUSED),
        (zq.ClaimLostError("taken over"), Exit.CONFLICT),
        (zq.DuplicateKeyError("waiting already"), Exit.CONFLICT),
        (zq.ConflictError("taken by others"), Exit.CONFLICT),
        (ConfigConflictError("another policy"), Exit.CONFLICT),
        (zq.OutcomeUnknownError("not known yet", "transaction"), Exit.UNKNOWN),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.name,
)
def test_each_kind_of_error_has_its_exit_status(error: Exception, status: Exit) -> None:
    assert expected(error) is error
    assert status_of(error) is status


def test_an_expected_error_is_found_in_nested_exception_groups() -> None:
    error = zq.ConnectionLostError("nobody answers")
    assert expected(ExceptionGroup("", [ExceptionGroup("", [error])])) is error


def test_an_internal_error_is_shown_although_an_expected_error_came_with_it() -> None:
    assert expected(KeyError("bug")) is None
    assert expected(ExceptionGroup("", [zq.ConnectionLostError("nobody answers"), KeyError("bug")])) is None


def test_a_usage_error_of_a_command_has_no_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    for line, error in (
        ("peek", "Missing argument 'QUEUE'. Give its name, or --curator PATH or --kazoo PATH."),
        ("put q x --lines", "BODY cannot be combined with --file and --lines"),
    ):
        assert run(line.split()) == Exit.USAGE
        assert capsys.readouterr().err == f"aiozkqueue: {error}\n"
    assert run(["jobs", "add"]) == Exit.USAGE
    assert capsys.readouterr().err.startswith("aiozkqueue: Missing argument 'NAME'")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("--hosts a:1 stats jobs", "--hosts; options go after the command; see: aiozkqueue --help"),
        ("stats jobs --zzz", "--zzz; see: aiozkqueue stats --help"),
        ("dlq nope", "'nope'; see: aiozkqueue dlq --help"),
    ],
)
def test_a_mistyped_command_or_option_is_refused_with_a_hint_to_the_help(
    line: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line.split()) == Exit.USAGE
    assert capsys.readouterr().err.strip().endswith(error)


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("imported", ["pydantic_core", "typer"])
def test_ctrl_c_while_the_command_is_imported_ends_it_without_a_traceback(
    cli: Cli, tmp_path: Path, imported: str
) -> None:
    (tmp_path / f"{imported}.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(600)\n")
    path = f"{tmp_path}:{cli.environment.get('PYTHONPATH', '')}"
    with subprocess.Popen(
        [sys.executable, "-c", "from aiozkqueue_completion import main; main()", "stats", "jobs"],
        env=cli.environment | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as command:
        cli.stack.callback(command.kill)
        assert command.stdout is not None
        assert command.stdout.readline() == b"importing\n"
        command.send_signal(signal.SIGINT)
        _, log = command.communicate(timeout=90)
    assert (command.returncode, complaints(log.decode())) == (Exit.INTERRUPTED, "")


@pytest.mark.parametrize(("closed", "arguments"), [(">&-", ["put", "jobs", "x"]), ("<&-", ["purge", "jobs", "--yes"])])
def test_a_command_runs_with_a_closed_stream(cli: Cli, closed: str, arguments: list[str]) -> None:
    cli("put", "jobs", "first")
    done = subprocess.run(
        ["bash", "-c", f'exec "$@" {closed}', "bash", *NEW_PROCESS, *arguments],
        env=cli.environment,
        stderr=subprocess.PIPE,
        timeout=120,
        check=False,
    )
    assert (done.returncode, complaints(done.stderr.decode())) == (0, "")
