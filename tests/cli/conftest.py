"""The command as users run it: a process with two streams and an exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli import json_fields
from tests.complaints import complaints

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


NEW_PROCESS = [sys.executable, "-m", "aiozkqueue"]


@dataclass(frozen=True)
class Done:
    status: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout.decode()

    @property
    def records(self) -> list[dict[str, Any]]:
        """The JSON objects that ``--json`` printed."""
        return [json.loads(line) for line in self.stdout.splitlines()]


@dataclass
class Cli:
    """Runs the command on the root of the test."""

    environment: dict[str, str]
    stack: ExitStack
    quick: Path | None = None
    """The folder of the command that needs no start of Python."""

    def __call__(self, *arguments: str, stdin: bytes = b"", **variables: str) -> Done:
        command = NEW_PROCESS if self.quick is None else [str(self.quick / "aiozkqueue")]
        return self._run(command, arguments, stdin, variables)

    def in_new_process(self, *arguments: str, stdin: bytes = b"", **variables: str) -> Done:
        """Run the command in a new Python process."""
        return self._run(NEW_PROCESS, arguments, stdin, variables)

    def _run(self, command: list[str], arguments: tuple[str, ...], stdin: bytes, variables: dict[str, str]) -> Done:
        done = subprocess.run(
            [*command, *arguments],
            env=self.environment | variables,
            input=stdin,
            capture_output=True,
            timeout=120,
            check=False,
        )
        result = Done(done.returncode, done.stdout, complaints(done.stderr.decode()))
        if "--json" in arguments and not done.returncode:
            json_fields.check(arguments, result.records)
        return result

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the command in a new Python process, which is killed at the end of the test if it still runs."""
        return self.start_in(None, *arguments)

    def start_in(self, folder: Path | None, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the command in this directory."""
        process = subprocess.Popen(
            [*NEW_PROCESS, *arguments],
            env=self.environment,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.stack.enter_context(process)
        self.stack.callback(process.kill)
        return process


@pytest.fixture
def cli(zookeeper: str, queue_root: str, quick_command: Path) -> Iterator[Cli]:
    with ExitStack() as stack:
        # A wide window, so that tables do not wrap.
        variables = {"AIOZKQUEUE_HOSTS": zookeeper, "AIOZKQUEUE_ROOT": queue_root, "COLUMNS": "200"}
        yield Cli(os.environ | variables, stack, quick_command)
