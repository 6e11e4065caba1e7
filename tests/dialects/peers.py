"""The real clients, each in a separate process: Curator from PySpark's jars, kazoo from PyPI.

The Java driver is source code. Janino, a compiler in the same wheel, compiles it at the start, so no JDK is needed. A
peer starts in the background and is not bound to an event loop: threads read and write for it, so that many tests can
share it.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from aiozkqueue.testing.runtime import java
from benchmarks.peers_curator import class_path_with_curator

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Seconds for an operation that is usually immediate; the machine may be busy.
PATIENCE = 60.0
_SOURCE = Path(__file__).parent / "java" / "CuratorPeer.java"


class _Peer:
    """A process that answers each line on its stdin with a line on its stdout."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ, text=True
        )
        self._answers: SimpleQueue[str | None] = SimpleQueue()
        self._lock = Lock()
        self._ready = False
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end of the process."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _exchange(self, line: str) -> str:
        """Send a line and wait for its answer; first wait until the process is ready."""
        with self._lock:
            if not self._ready:
                self._answer()
                self._ready = True
            assert self._process.stdin is not None
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            return self._answer()

    def _answer(self) -> str:
        answer = None
        with suppress(Empty):
            answer = self._answers.get(timeout=PATIENCE)
        if answer is None:  # a late answer would be taken for the next one
            self._process.kill()
            msg = f"the peer has ended, or has not answered for {PATIENCE} s"
            raise RuntimeError(msg)
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._received(line.rstrip("\n"))
        self._answers.put(None)

    def _received(self, line: str) -> None:
        self._answers.put(line)


class Curator(_Peer):
    """A JVM that serves Curator's queues."""

    def __init__(self, hosts: str, timeout: float = 30.0, *, compressed: bool = False) -> None:
        self._shown: defaultdict[str, SimpleQueue[bytes]] = defaultdict(SimpleQueue)
        super().__init__(
            [
                java(),
                "-cp",
                class_path_with_curator(),
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-Xshare:auto",
                "-Xmx128m",
                "-Dlog4j2.level=OFF",
                "org.codehaus.janino.SimpleCompiler",
                str(_SOURCE),
                "CuratorPeer",
                hosts,
                str(round(timeout * 1000)),
                *(["compressed"] if compressed else []),
            ]
        )

    async def ask(self, *words: object) -> str:
        """Send a command; return its answer."""
        answer = await asyncio.to_thread(self._exchange, " ".join(map(str, words)))
        assert not answer.startswith("error"), answer
        return answer

    async def session(self) -> tuple[int, bytes]:
        """Return the id and the password of its ZooKeeper session."""
        session_id, password = (await self.ask("session")).split()
        return int(session_id), bytes.fromhex(password)

    async def shown(self, name: str, count: int = 1) -> list[bytes]:
        """Wait for the next messages of a consumer, and return them. Raises: TimeoutError."""
        return await asyncio.to_thread(self._wait_for_shown, name, count)

    async def shown_until_now(self, name: str) -> list[bytes]:
        """Return all messages that a consumer has got so far and that were not returned before."""
        await self.ask("here")  # answered after the lines of all these messages
        return self.shown_and_read(name)

    def shown_and_read(self, name: str) -> list[bytes]:
        """Return the messages of a consumer whose lines have been read; if the peer was killed, these are all."""
        queue, bodies = self._shown[name], list[bytes]()
        try:
            while True:
                bodies.append(queue.get_nowait())
        except Empty:
            return bodies

    def _wait_for_shown(self, name: str, count: int) -> list[bytes]:
        queue, bodies = self._shown[name], list[bytes]()
        while len(bodies) < count:
            try:
                bodies.append(queue.get(timeout=PATIENCE))
            except Empty:
                msg = f"{name} got {len(bodies)} of {count} messages, and no further one for {PATIENCE} s"
                raise TimeoutError(msg) from None
        return bodies

    def reset(self) -> None:
        """Close everything that a test has opened."""
        answer = self._exchange("reset")
        assert answer == "reset", answer
        self._shown.clear()

    def _received(self, line: str) -> None:
        if line.startswith("+ "):
            _, name, *body = line.split(" ")
            self._shown[name].put(bytes.fromhex(body[0] if body else ""))
        elif line.startswith("= "):
            self._answers.put(line[2:])


class Kazoo(_Peer):
    """A process that serves kazoo's queues; a path that ends in ``locking`` is that of a LockingQueue."""

    def __init__(self, hosts: str, timeout: float = 30.0) -> None:
        super().__init__([sys.executable, str(Path(__file__).parent / "kazoo_peer.py"), hosts, str(timeout)])

    async def ask(self, command: str, path: str, *arguments: object) -> Any:
        """Send a command; return its answer."""
        return json.loads(await asyncio.to_thread(self._exchange, json.dumps([command, path, *arguments])))

    async def session(self) -> tuple[int, bytes]:
        """Return the id and the password of its ZooKeeper session."""
        session_id, password = await self.ask("session", "")
        return session_id, bytes.fromhex(password)

    async def get(self, path: str, *arguments: object) -> bytes | None:
        got = await self.ask("get", path, *arguments)
        return None if got is None else bytes.fromhex(got)

    def reset(self) -> None:
        """Release everything that a test has held."""
        answer = self._exchange(json.dumps(["reset", ""]))
        assert answer == "null", answer
