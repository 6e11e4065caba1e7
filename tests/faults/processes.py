"""Worker processes that end with the test."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

REPOSITORY = Path(__file__).parents[2]


class Workers:
    """Starts workers of `tests.faults.worker` that share a journal."""

    def __init__(self, hosts: str, root: str, journal: Path) -> None:
        self._hosts = hosts
        self._root = root
        self.journal = journal
        self._processes: list[subprocess.Popen[bytes]] = []

    async def start(self, role: str, *, session_timeout: float) -> subprocess.Popen[bytes]:
        arguments = [self._hosts, self._root, str(self.journal), str(session_timeout)]
        command = [sys.executable, "-m", "tests.faults.worker", role, *arguments]
        process = await asyncio.to_thread(subprocess.Popen, command, cwd=REPOSITORY)
        self._processes.append(process)
        return process

    def lines(self) -> list[str]:
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    async def wait_for_lines(self, count: int, within: float = 60.0) -> list[str]:
        """Wait until the journal has this many lines. Raises: TimeoutError."""
        async with asyncio.timeout(within):
            while len(lines := await asyncio.to_thread(self.lines)) < count:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.005)
        return lines

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(process.wait)
