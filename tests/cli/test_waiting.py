"""Commands that take more than two seconds show their progress on a terminal, and nowhere else."""

from __future__ import annotations

import os
import pty
import socket
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from aiozkqueue.cli import bars

if TYPE_CHECKING:
    import pytest

    from tests.cli.conftest import Cli


def on_a_terminal(cli: Cli, *arguments: str) -> str:
    """Return the output of a command on a terminal of 100 columns."""
    main, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "aiozkqueue", *arguments],
        env=os.environ | cli.environment | {"COLUMNS": "100", "TERM": "xterm"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    shown = b""
    with suppress(OSError):  # the terminal is closed
        while data := os.read(main, 65536):
            shown += data
    os.close(main)
    process.wait(timeout=60)
    return shown.decode()


def test_a_command_that_waits_for_a_server_says_so_on_a_terminal(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]}"
        arguments = ("stats", "--hosts", hosts, "--connect-timeout", str(bars.BAR_DELAY + 3))
        assert f"connecting to {hosts}" in on_a_terminal(cli, *arguments)
        piped = cli(*arguments)
    assert "connecting" not in piped.stderr


def test_work_that_ends_early_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "BAR_DELAY", 3600.0)
    main, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        with bars.waiting("nothing", stream):
            pass
        stream.write("end")
    assert os.read(main, 1024) == b"end"
    os.close(main)
