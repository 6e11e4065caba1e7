"""A shell that runs one command after another, as a reader types them."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait()
        self._typed.close()
        self._shown.close()
