"""Consumers in separate processes, as seen by the parent."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

import psutil

if TYPE_CHECKING:
    from types import TracebackType

    from .measure import Server

#: Maximum number of processes that sessions are spread over.
PROCESSES = 4


class Consumers:
    """This many sessions, spread over processes; all are connected and ready when the block begins."""

    def __init__(self, server: Server, queue: str, mode: str, *, sessions: int, tasks: int) -> None:
        each = min(sessions, PROCESSES)
        shares = [sessions // each + (number < sessions % each) for number in range(each)]
        command = [sys.executable, "-m", "benchmarks.consumer_process", server.hosts, queue, mode]
        self._processes = [
            subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [*command, str(share), str(tasks)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for share in shares
        ]
        self.processes = [psutil.Process(process.pid) for process in self._processes]

    def __enter__(self) -> Self:
        self._read()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.signal()  # closes the sessions
        for process in self._processes:
            if kind is not None:
                process.kill()
            process.wait(60)

    def signal(self) -> None:
        """Send the next command: start, then stop."""
        for process in self._processes:
            assert process.stdin is not None  # noqa: S101 - for the type checker: it is a pipe
            process.stdin.write("\n")
            process.stdin.flush()

    def answers(self) -> list[dict[str, Any]]:
        """Return the report that each process makes at the end."""
        return [json.loads(line) for line in self._read()]

    def _read(self) -> list[str]:
        lines: list[str] = []
        for process in self._processes:
            assert process.stdout is not None  # noqa: S101 - as above
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("a consumer process has failed; its error is above")
            lines.append(line)
        return lines


def failed(answers: list[dict[str, Any]], messages: int) -> dict[str, float]:
    """Return the failed locks per message: refused claims and vanished items, and then all locks of refused claims."""
    counts = {name: sum(answer["counts"][name] for answer in answers) for name in answers[0]["counts"]}
    return {
        "failed": (counts["contended"] + counts["gone"]) / messages,
        "in_vain": (counts["contended_locks"] + counts["gone"]) / messages,
        "batch": messages / max(1, counts["batches"]),
    }
