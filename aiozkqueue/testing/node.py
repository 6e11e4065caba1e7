"""One server process of an embedded ensemble, and its controls."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiozkqueue.testing import supervisor
from aiozkqueue.testing.runtime import ServerUnavailableError, class_path, java, jvm_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.testing.configuration import Ports

# Seconds that a server may take to stop before it is killed.
_GRACE: Final = 5.0
# Maximum seconds until a killed server is gone.
_GONE: Final = 60.0
_POLL: Final = 0.02
_MOMENT: Final = 0.001
_TAKEN: Final = "Address already in use"


class PortTakenError(ServerUnavailableError):
    """Another process listens on one of the server's ports."""


def accepts(port: int, *, host: str = "127.0.0.1", timeout: float = 1.0) -> bool:
    """Return whether a process accepts connections on a port."""
    try:
        with socket.create_connection((host, port), timeout):
            return True
    except OSError:
        return False


def four_letters(port: int, word: str, *, host: str = "127.0.0.1", timeout: float = 1.0) -> str:
    """Send a four-letter command of ZooKeeper to a server; return "" if no answer arrives in time."""
    answer = bytearray()
    deadline = time.monotonic() + timeout
    with suppress(OSError), socket.create_connection((host, port), timeout) as connection:
        connection.sendall(word.encode())
        while data := connection.recv(65536):
            answer += data
            connection.settimeout(max(0.001, deadline - time.monotonic()))
    return answer.decode(errors="replace")


class EmbeddedNode:
    """One ZooKeeper server: a child process that can be stopped, killed, paused and started again.

    The methods block for up to seconds; on an event loop call them through ``asyncio.to_thread``.
    """

    def __init__(
        self,
        folder: Path,
        number: int,
        ports: Ports,
        arguments: Sequence[str],
        *,
        secure: bool,
        temporary: Path | None,
    ) -> None:
        self.folder: Final = folder
        self.number: Final = number
        self.ports: Final = ports
        self._arguments = arguments
        self._secure = secure  # whether the TLS port is opened, after the plain one
        self._temporary = temporary  # the supervisor removes it if this process dies without stopping
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._pid = 0

    @property
    def hosts(self) -> str:
        """The connection string of this server alone."""
        return f"127.0.0.1:{self.ports.client}"

    @property
    def secure_hosts(self) -> str:
        """The connection string of this server's TLS port, for servers with TLS."""
        return f"127.0.0.1:{self.ports.secure}"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.folder / "zookeeper.log"

    @property
    def running(self) -> bool:
        """Whether the process exists, paused or not."""
        return self._supervisor is not None and self._supervisor.poll() is None

    @property
    def pid(self) -> int:
        """The JVM's process id. Raises: RuntimeError when the server does not run."""
        if not self.running:
            text = f"the ZooKeeper server {self.hosts} is not running"
            raise RuntimeError(text)
        return self._pid

    def mode(self) -> str | None:
        """``leader``, ``follower`` or ``standalone``; None if the server does not serve clients at the moment."""
        for line in four_letters(self.ports.client, "srvr").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return None

    def launch(self) -> None:
        """Start the process without waiting until it serves clients. No effect if it is already running.

        Raises: ServerUnavailableError when Java or the jars are missing.
        """
        if self.running:
            return
        command = [java(), *jvm_options(), "-cp", class_path(), *self._arguments]
        remove = "" if self._temporary is None else str(self._temporary)
        with (self.folder / "output.log").open("ab") as output:
            self._supervisor = subprocess.Popen(  # noqa: S603 -- our own interpreter and script
                [sys.executable, "-I", "-S", supervisor.__file__, str(os.getpid()), remove, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,  # Ctrl-C reaches this process alone: the server is stopped after its clients
            )
        assert self._supervisor.stdout is not None  # noqa: S101 -- for the type checker: it is a pipe
        line = self._supervisor.stdout.readline()
        if not line:
            self._forget()
            text = f"the embedded ZooKeeper could not be started; its last lines:\n{self._last_lines()}"
            raise ServerUnavailableError(text)
        self._pid = int(line)

    def serves(self) -> bool:
        """Return whether the server serves clients now, including on its TLS port if it has one.

        Raises: ServerUnavailableError when its process has ended; PortTakenError when a taken port was the cause.
        """
        if self.running:
            # If the port was taken, another ZooKeeper may be answering.
            ours = f"dataDir={self.folder / 'data'}"
            if self.mode() is None or ours not in four_letters(self.ports.client, "conf"):
                return False
            return not self._secure or accepts(self.ports.secure)
        self._forget()
        if _TAKEN in self._last_lines():
            text = (
                f"port {self.ports.client}, or another port of this server, is in use; "
                "stop the other server, or use port 0 for free ports"
            )
            raise PortTakenError(text)
        text = f"the embedded ZooKeeper {self.hosts} has ended; its last lines:\n{self._last_lines()}"
        raise ServerUnavailableError(text)

    def wait_serving(self, timeout: float = 30.0) -> None:
        """Wait until the server serves clients.

        Raises: ServerUnavailableError when it does not serve within ``timeout`` seconds, or as `serves` does.
        """
        deadline = time.monotonic() + timeout
        while not self.serves():
            if time.monotonic() > deadline:
                text = f"the embedded ZooKeeper {self.hosts} did not serve within {timeout:g} s; see {self.log}"
                raise ServerUnavailableError(text)
            time.sleep(_POLL)

    def start(self, timeout: float = 30.0) -> None:
        """Start the server and wait until it serves. Raises: ServerUnavailableError."""
        self.launch()
        self.wait_serving(timeout)

    def stop(self) -> None:
        """Stop the server with SIGTERM, and with SIGKILL after 5 s. Idempotent."""
        if not self.running:
            self._forget()
            return
        with suppress(RuntimeError):  # it has ended by itself in the meantime
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)
        try:
            self._wait(_GRACE)
        except subprocess.TimeoutExpired:
            self.kill()
        self._forget()

    def kill(self) -> None:
        """Kill the server with SIGKILL, as in a crash; return when it is gone. Idempotent."""
        if self.running:
            with suppress(RuntimeError):  # it has ended by itself in the meantime
                self._signal(signal.SIGKILL)
            self._wait(_GONE)
        self._forget()

    def pause(self) -> None:
        """Freeze the server (SIGSTOP): connections stay open, and nothing answers once this returns, after some ms.

        Raises: RuntimeError when the server does not run, or does not stop within a minute.
        """
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + _GONE
        while not _is_stopped(self.pid):
            if time.monotonic() > deadline:
                text = f"the ZooKeeper server {self.hosts} could not be stopped within {_GONE:g} s"
                raise RuntimeError(text)
            time.sleep(_MOMENT)

    def resume(self) -> None:
        """Resume a paused server (SIGCONT). Does not block. Raises: RuntimeError when the server does not run."""
        self._signal(signal.SIGCONT)

    def restart(self, timeout: float = 30.0) -> None:
        """Stop the server if it runs, start it with the same ports and data, and wait until it serves clients.

        Raises: ServerUnavailableError.
        """
        self.stop()
        self.start(timeout)

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.kill(self.pid, number)
        except ProcessLookupError as error:  # it has ended, and its supervisor is about to end
            text = f"the ZooKeeper server {self.hosts} has ended"
            raise RuntimeError(text) from error

    def _wait(self, timeout: float) -> None:
        if self._supervisor is not None:
            self._supervisor.wait(timeout)

    def _forget(self) -> None:
        if self._supervisor is None:
            return
        for pipe in (self._supervisor.stdin, self._supervisor.stdout):
            if pipe is not None:
                pipe.close()
        self._supervisor.wait()
        self._supervisor = None

    def _last_lines(self) -> str:
        text = "".join(
            file.read_text(errors="replace") for file in (self.folder / "output.log", self.log) if file.exists()
        )
        return "\n".join(text.splitlines()[-40:])


def _is_stopped(pid: int) -> bool:
    """Return whether all threads of a process have stopped; True on systems without /proc."""
    for thread in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
            _, _, fields = thread.read_text().rpartition(")")  # after the name, which may contain any character
            if fields.split()[0] not in "Tt":
                return False
    return True
