"""The real clients, each in a process of its own: Curator from PySpark's jars, kazoo from PyPI.

The Java driver is source; Janino, a compiler that the same wheel carries, compiles it on the spot: no JDK is needed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import defaultdict
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from aiozkqueue.testing.runtime import java
from benchmarks.peers_curator import class_path_with_curator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

#: Seconds for what takes a moment; the machine may be loaded.
PATIENCE = 40.0
_SOURCE = Path(__file__).parent / "java" / "CuratorPeer.java"


class _Peer:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def kill(self) -> None:
        """SIGKILL it, and wait until it is gone."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        await self._process.stdin.drain()

    async def _line(self) -> str:
        assert self._process.stdout is not None
        line = (await self._process.stdout.readline()).decode().rstrip("\n")
        if not line:
            msg = "the peer has ended"
            raise RuntimeError(msg)
        return line


class Curator(_Peer):
    """A JVM with Curator's queues."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        super().__init__(process)
        self._answers: asyncio.Queue[str] = asyncio.Queue()
        self._shown: defaultdict[str, asyncio.Queue[bytes]] = defaultdict(asyncio.Queue)
        self._reader = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def start(cls, hosts: str, timeout: float = 10.0) -> Self:
        found, jars = await asyncio.to_thread(lambda: (java(), class_path_with_curator()))
        process = await asyncio.create_subprocess_exec(
            found,
            "-cp",
            jars,
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xmx128m",
            "-Dlog4j2.level=OFF",
            "org.codehaus.janino.SimpleCompiler",
            str(_SOURCE),
            "CuratorPeer",
            hosts,
            str(round(timeout * 1000)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        peer = cls(process)
        async with asyncio.timeout(PATIENCE):
            assert await peer._answers.get() == "ready"
        return peer

    async def ask(self, *words: object) -> str:
        """Give a command; return its answer."""
        async with self._lock, asyncio.timeout(PATIENCE):
            await self._send(" ".join(map(str, words)))
            answer = await self._answers.get()
        assert not answer.startswith("error"), answer
        return answer

    async def shown(self, name: str, count: int = 1, timeout: float = PATIENCE) -> list[bytes]:
        """Return what a consumer has been shown next."""
        async with asyncio.timeout(timeout):
            return [await self._shown[name].get() for _ in range(count)]

    def shown_by_now(self, name: str) -> list[bytes]:
        """Return what a consumer has been shown and nobody has asked for."""
        queue = self._shown[name]
        return [queue.get_nowait() for _ in range(queue.qsize())]

    async def kill(self) -> None:
        self._reader.cancel()
        await super().kill()

    async def _read(self) -> None:
        while True:
            line = await self._line()
            if line.startswith("+ "):
                _, name, *body = line.split(" ")
                self._shown[name].put_nowait(bytes.fromhex(body[0] if body else ""))
            elif line.startswith("= "):
                self._answers.put_nowait(line[2:])


class Kazoo(_Peer):
    """A process with kazoo's queues; a path that ends in ``locking`` is a LockingQueue's."""

    @classmethod
    async def start(cls, hosts: str, timeout: float = 10.0) -> Self:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).parent / "kazoo_peer.py"),
            hosts,
            str(timeout),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ,
        )
        peer = cls(process)
        async with asyncio.timeout(PATIENCE):
            assert json.loads(await peer._line()) == "ready"
        return peer

    async def ask(self, command: str, path: str, *arguments: object) -> Any:
        """Give a command; return its answer."""
        async with self._lock, asyncio.timeout(PATIENCE):
            await self._send(json.dumps([command, path, *arguments]))
            return json.loads(await self._line())

    async def get(self, path: str, *arguments: object) -> bytes | None:
        got = await self.ask("get", path, *arguments)
        return None if got is None else bytes.fromhex(got)


@asynccontextmanager
async def running(peer: Curator | Kazoo) -> AsyncIterator[None]:
    """Kill a peer at the end."""
    try:
        yield
    finally:
        await peer.kill()
