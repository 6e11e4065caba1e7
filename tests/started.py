"""The `aiozkqueue` command without the start time of Python, for tests that call it dozens of times.

One process has imported the command. The file `aiozkqueue`, first on the path, passes its arguments, environment,
folder and streams to that process, which forks for each call. Each call is thus a separate process, which runs the
command's `main` and ends with its status, a third of a second sooner. It finds modules in the folders of `PYTHONPATH`.
It is unsuitable for calls that a test kills, or that set other environment variables of Python itself.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
from ast import literal_eval
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING

import aiozkqueue.cli

if TYPE_CHECKING:
    from collections.abc import Iterator

_SOCKET = "started.sock"
_LARGEST = 1 << 20

# Without `json`, `socket` and `os`, whose imports take longer than the rest of it.
_STAND_IN = """#!{python} -IS
import _socket, posix, sys
connection = _socket.socket(_socket.AF_UNIX)
connection.connect({address!r})
call = repr((sys.argv[1:], posix.environ, posix.getcwd())).encode()
streams = b"".join(stream.to_bytes(4, sys.byteorder) for stream in range(3))
connection.sendmsg([len(call).to_bytes(4, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
connection.sendall(call)
sys.exit(int.from_bytes(connection.recv(1), "big"))
"""
# The command imports these when it first needs them.
_LATE = ("anyio._backends._asyncio", "encodings.idna", "typer._adapters", "typer.rich_utils")


@contextmanager
def started(folder: Path) -> Iterator[Path]:
    """Yield a folder with the command, which must be put on the path."""
    address = folder / _SOCKET
    command = folder / "bin" / "aiozkqueue"
    command.parent.mkdir()
    command.write_text(_STAND_IN.format(python=sys.executable, address=str(address)))
    command.chmod(0o755)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen()
    with (
        listener,
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(listener.fileno())],
            cwd=Path(__file__).parents[1],
            pass_fds=[listener.fileno()],
        ) as forking,
    ):
        yield command.parent
        forking.kill()


def _serve(listener: socket.socket) -> None:
    for module in iter_modules(aiozkqueue.cli.__path__):  # the slow part, done once
        if not module.name.startswith("_"):
            import_module(f"aiozkqueue.cli.{module.name}")
    for name in _LATE:
        import_module(name)
    gc.collect()
    gc.freeze()  # no call has to look through all of it, or to copy the pages that this would write to
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            _run(connection)
        connection.close()


def _run(connection: socket.socket) -> None:
    """Act as the command that was called."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, streams, _, _ = socket.recv_fds(connection, 4, 3)
    call = b""
    while len(call) < int.from_bytes(size, "big"):
        call += connection.recv(_LARGEST)
    arguments, environment, folder = literal_eval(call.decode())
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environb.update(environment)
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [each for each in folders if each and each not in sys.path]
    sys.argv = ["aiozkqueue", *arguments]
    status = 1
    try:
        aiozkqueue.cli.main()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.stdout.flush()
        connection.sendall(status.to_bytes(1, "big"))
        os._exit(status)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
