"""Asks a worker on the same machine where its handlers wait, by a signal and a file that the worker fills.

The asking process creates an empty file, named after the worker, and sends SIGUSR1; the worker writes its dump to that
file and to its stderr. The file must belong to the worker's user. The worker never creates it, and ignores a file of
another user in its place.
"""

from __future__ import annotations

import os
import signal
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import NotFoundError, QueueError

if TYPE_CHECKING:
    from collections.abc import Mapping

_END: Final = b"\0"
_POLL: Final = 0.05


def ask(pid: int, *, timeout: float) -> str:
    """Return a worker's description of its tasks; wait up to ``timeout`` seconds, even if a handler blocks its loop.

    Raises:
        NotFoundError: there is no such process, or it is not a worker.
        QueueError: it does not answer in time.
        PermissionError: it belongs to another user.
    """
    owner = _worker(pid)
    path = _file(pid, owner)
    path.unlink(missing_ok=True)  # left by a caller that has gone away
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    try:
        if owner != os.geteuid():
            os.fchown(descriptor, owner, -1)
        os.kill(pid, signal.SIGUSR1)
        deadline = time.monotonic() + timeout
        while not (dump := _read(descriptor)).endswith(_END):
            if time.monotonic() > deadline:
                msg = (
                    f"process {pid} does not answer within {timeout:g} s: it has a different {tempfile.gettempdir()} "
                    "(then run this inside its container), or non-Python code blocks it; it also writes the dump to "
                    "its stderr"
                )
                raise QueueError(msg)
            time.sleep(_POLL)
        return dump.removesuffix(_END).decode()
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


def answer(text: str) -> None:
    """Write the dump to the file of a waiting caller, if there is one."""
    try:
        # Another user may have put a FIFO in its place: without O_NONBLOCK this would wait for a reader.
        descriptor = os.open(_file(os.getpid(), os.geteuid()), os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return  # there was only a signal and no file
    with os.fdopen(descriptor, "wb") as file:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1:
            file.write(text.encode() + _END)


def _file(pid: int, owner: int) -> Path:
    return Path(tempfile.gettempdir()) / f"aiozkqueue-dump-{owner}-{pid}"


def _read(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _worker(pid: int) -> int:
    """Return the owner of the process. The signal would end a process that does not expect it.

    Raises: NotFoundError.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError as error:
        msg = f"there is no process {pid}; `aiozkqueue consumers QUEUE` lists the consumers of a queue with their hosts"
        raise NotFoundError(msg) from error
    except PermissionError:
        pass  # reported below, or by the signal itself
    try:
        lines = _status(pid)
    except FileNotFoundError:
        return os.geteuid()  # a system without /proc
    if not _expects_the_signal(lines):
        process = f"process {pid} ({lines['Name']})"
        msg = f"{process} is not an `aiozkqueue worker`, or has not started yet"
        if started := _workers_of(pid):
            msg = f"{process} runs no handlers; dump one of the processes that it has started: {started}"
        raise NotFoundError(msg)
    return int(lines["Uid"].split()[1])


def _status(pid: int | str) -> dict[str, str]:
    """Return what the system says about a process. Raises: FileNotFoundError, ProcessLookupError: it has gone away."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _expects_the_signal(status: Mapping[str, str]) -> bool:
    return bool(int(status["SigCgt"], 16) >> (signal.SIGUSR1 - 1) & 1)


def _workers_of(pid: int) -> str:
    """Return the ids of the processes that a worker with ``--processes`` has started; empty if there are none."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            status = _status(folder.name)
            if int(status["PPid"]) == pid and _expects_the_signal(status):
                found.append(int(folder.name))
    return ", ".join(map(str, sorted(found)))
