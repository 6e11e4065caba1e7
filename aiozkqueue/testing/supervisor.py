"""A small process between the caller and the JVM, so that no JVM outlives the caller, even if that crashes.

Run it as a script: ``python supervisor.py <caller's pid> <folder to remove, or nothing> <command>...``.
It prints the command's pid, and kills the command when its standard input ends or its parent changes. Only in that
case it also removes the folder, because no other process is left to do so.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys

#: The interval of checks of the parent's pid, seconds: a fork of the caller may keep its end of the pipe open.
_POLL = 0.5


def _die_with_the_supervisor() -> None:
    # If the supervisor itself is killed, Linux kills the JVM too.
    import ctypes  # noqa: PLC0415 -- only here, and only on Linux

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def supervise(parent: int, folder: str, command: list[str]) -> int:
    """Run the command until it or the parent ends; return the command's exit code."""
    life, command_end = os.pipe()  # reads as ended when the command's last process is gone
    child = subprocess.Popen(  # noqa: S603 -- the command is the embedded server's
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        pass_fds=(command_end,),
        preexec_fn=_die_with_the_supervisor if sys.platform == "linux" else None,  # noqa: PLW1509 -- no threads here
    )
    os.close(command_end)
    print(child.pid, flush=True)  # noqa: T201 -- this is the protocol
    orphaned = False
    while not orphaned:
        ready, _, _ = select.select([sys.stdin, life], [], [], _POLL)
        if life in ready:
            return child.wait()
        orphaned = sys.stdin in ready or os.getppid() != parent
    child.kill()
    code = child.wait()
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(supervise(int(sys.argv[1]), sys.argv[2], sys.argv[3:]) & 0xFF)
