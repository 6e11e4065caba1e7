"""Curator's DistributedQueue, from the jars in PySpark's wheel, in one JVM for all rounds, which thus stays warm.

The driver is Java source. Janino, a compiler in the same wheel, compiles it at run time, so no JDK is needed.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import psutil

from aiozkqueue.testing.runtime import class_path, java

from . import wire
from .absent import AbsentError
from .measure import BODY, Case, Stopwatch
from .raw import fill
from .wire import Connection

if TYPE_CHECKING:
    from types import TracebackType

    from .measure import Sample, Server

_SOURCE: Final = Path(__file__).parent / "java" / "CuratorQueue.java"
_BASE: Final = "/benchmark-curator"
_ITEMS: Final = f"{_BASE}/items"
_LOCKS: Final = f"{_BASE}/locks"
# One message in Curator's format: its version, the message, the end.
_FRAMED: Final = bytes.fromhex("0001000101") + len(BODY).to_bytes(4, "big") + BODY + b"\x02"
_JARS: Final = ("curator-*", "guava-*", "failureaccess-*", "janino-*", "commons-compiler-*")


class Curator:
    """The JVM with the driver, started on first use."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def put(self, server: Server, messages: int, *, background: bool) -> Sample:
        """Put messages, and wait for the server's answer to each, or put in the background and flush at the end."""
        word = "background" if background else "put"
        return self._run(server, messages, 0, f"{word} {_ITEMS} {messages} {len(BODY)}")

    def consume(self, server: Server, messages: int, *, safe: bool, threads: int = 1) -> Sample:
        """Consume the waiting messages until the queue is empty."""
        lock = _LOCKS if safe else "-"
        return self._run(server, messages, messages, f"consume {_ITEMS} {lock} {threads} {messages}")

    def _run(self, server: Server, messages: int, waiting: int, command: str) -> Sample:
        process = self._start(server)
        with Connection(server.first) as connection:
            connection.remove(_BASE.encode())
            connection.ensure(_ITEMS.encode())
            fill(connection, wire.create(f"{_ITEMS}/queue-".encode(), _FRAMED, wire.SEQUENTIAL), waiting)
            with Stopwatch(server, [psutil.Process(process.pid)]) as watch:
                self._send(process, command)
            connection.remove(_BASE.encode())
        return watch.sample(messages)

    def _start(self, server: Server) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(  # noqa: S603 - our own source, the embedded server's Java
                [*curator_driver(), server.hosts],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self._answer(self._process, "ready")
        return self._process

    def _send(self, process: subprocess.Popen[str], command: str) -> None:
        assert process.stdin is not None  # noqa: S101 - for the type checker: it is a pipe
        process.stdin.write(command + "\n")
        process.stdin.flush()
        self._answer(process, "done")

    def _answer(self, process: subprocess.Popen[str], expected: str) -> None:
        assert process.stdout is not None  # noqa: S101 - as above
        line = process.stdout.readline()
        if not line.startswith(expected):
            raise AbsentError(f"Curator's driver ended: {line or 'see the Java error above'}")


def cases(curator: Curator) -> list[Case]:
    """Return the measured cases of Curator."""
    return [
        Case("Curator: put", "put", 2_000, partial(curator.put, background=False)),
        Case("Curator: put in background", "put", 10_000, partial(curator.put, background=True)),
        Case("Curator: consume, unsafe", "take", 2_000, partial(curator.consume, safe=False)),
        Case("Curator: consume, safe", "take", 1_000, partial(curator.consume, safe=True)),
        Case("Curator: consume, safe, 8 threads", "take", 2_000, partial(curator.consume, safe=True, threads=8)),
    ]


def curator_driver() -> list[str]:
    """Return the command that starts the driver; its arguments are the servers and the session timeout in milliseconds.

    Raises: AbsentError.
    """
    options = ["-cp", class_path_with_curator(), "-XX:+UseSerialGC", "-Xmx256m", "-Dlog4j2.level=OFF"]
    return [java(), *options, "org.codehaus.janino.SimpleCompiler", str(_SOURCE), "CuratorQueue"]


def class_path_with_curator() -> str:
    """Return the jars that the driver needs, as a Java class path. Raises: AbsentError."""
    spec = importlib.util.find_spec("pyspark")
    folders = [Path(place) / "jars" for place in (spec.submodule_search_locations or ())] if spec is not None else []
    found = [str(jar) for folder in folders for pattern in _JARS for jar in sorted(folder.glob(f"{pattern}.jar"))]
    if not any("curator-recipes" in jar for jar in found) or not any("janino" in jar for jar in found):
        raise AbsentError("no Curator, or no Janino to compile its driver, in the jars of the installed pyspark")
    return os.pathsep.join([*found, class_path()])
