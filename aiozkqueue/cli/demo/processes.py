"""The demo's worker processes, from the parent's side."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from aiozkqueue.cli.connection import Connection
from aiozkqueue.cli.exits import CommandFailedError


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process."""

    name: str
    process: Process

    async def reported(self, event: str) -> dict[str, Any]:
        """Wait until the worker has reported an event. Raises: CommandFailedError: the worker ended before."""
        assert self.process.stdout is not None  # noqa: S101 - for the type checker: it is a pipe
        async for line in self.process.stdout:
            report: dict[str, Any] = json.loads(line)
            if report["event"] == event:
                return report
        message = f"{self.name} ended with status {await self.process.wait()} before it was {event}"
        raise CommandFailedError(message)

    def begin(self) -> None:
        """Let the worker take its first line."""
        assert self.process.stdin is not None  # noqa: S101 - as above
        self.process.stdin.write(b"begin\n")

    async def end(self) -> int:
        """Let the worker finish its current line, and return its exit status."""
        assert self.process.stdin is not None  # noqa: S101 - as above
        self.process.stdin.write(b"end\n")
        return await self.process.wait()

    async def kill(self) -> int:
        """Send SIGKILL, and return the exit status."""
        self.process.kill()
        return await self.process.wait()


@asynccontextmanager
async def started(
    names: Sequence[str], connection: Connection, *, lines: str, results: str, hold_at: int
) -> AsyncIterator[list[Worker]]:
    """Run one process per name. The first stops inside its delivery number ``hold_at``. On exit, all have ended."""
    workers: list[Worker] = []
    try:
        for name in names:
            hold = [] if workers else ["--hold-at", str(hold_at)]
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "aiozkqueue", "demo-worker", *hold, name, lines, results),
                stdin=PIPE,
                stdout=PIPE,
                env=connection.environment(),
                start_new_session=True,  # Ctrl-C is handled by the parent
            )
            workers.append(Worker(name, process))
        yield workers
    finally:
        for worker in workers:
            with suppress(ProcessLookupError):
                worker.process.kill()
            await worker.process.wait()
