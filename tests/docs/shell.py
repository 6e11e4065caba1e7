"""A shell that runs one command after another, as a reader types them."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

# Marks the end of a command's output; its exit status follows.
_END = b"\x1e"


@dataclass(frozen=True)
class Done:
    output: str
    status: int


class Shell:
    """One `sh` for a whole page, so that variables and background processes of a command exist for the next one."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._shell = subprocess.Popen(
            ["sh"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._typed, self._shown = self._shell.stdin, self._shell.stdout
        os.set_blocking(self._shown.fileno(), False)

    def run(self, command: str, timeout: float) -> Done:
        self._typed.write(f"{{ {command}\n}} </dev/null; printf '\\036%d\\n' $?\n".encode())
        self._typed.flush()
        shown, deadline = b"", time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._shown, selectors.EVENT_READ)
            while _END not in shown or not shown.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    msg = f"{command}: nothing for {timeout:g} s after {shown.decode()!r}"
                    raise TimeoutError(msg)
                shown += self._shown.read() or b""
        output, _, status = shown.partition(_END)
        return Done(output.decode(), int(status))

    def running(self) -> list[str]:
        """Return the command lines of the processes that the commands have started and that still run.

        It reads `/proc`; a system without it is not checked.
        """
        found = (folder for folder in Path("/proc").glob("[0-9]*") if int(folder.name) != self._shell.pid)
        return sorted(filter(None, (_command_line(folder, self._shell.pid) for folder in found)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait()
        self._typed.close()
        self._shown.close()


def _command_line(process: Path, session: int) -> str:
    """Return the command line of a process of a session; nothing for other processes and those that have ended."""
    try:
        arguments = (process / "cmdline").read_bytes()  # empty if it has ended
        return arguments.replace(b"\0", b" ").decode() if os.getsid(int(process.name)) == session else ""
    except (FileNotFoundError, ProcessLookupError):
        return ""
