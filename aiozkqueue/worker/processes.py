"""Several processes of one command: a signal stops all, and a process that was killed is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from typing import TYPE_CHECKING, Final

from .stops import on_stop_signals

if TYPE_CHECKING:
    from collections.abc import Sequence

log: Final = logging.getLogger(__name__)

#: Seconds until a killed process is replaced: it may be killed again at once.
AGAIN: Final = 1.0

#: Seconds after which a cancelled supervisor kills a process that still runs.
ENDING: Final = 10.0


async def supervise(commands: Sequence[Sequence[str]]) -> int:
    """Run each command in a process until all end; return the first exit status that is not 0.

    At SIGTERM, SIGINT or SIGHUP, all get SIGTERM: a process that still imports its modules ends by it without a
    traceback. A process that a signal kills is started again. If one ends with an error, the others are stopped. If the
    caller is cancelled, all get SIGTERM, and those that still run 10 s later are killed.
    """
    return await _Processes().serve(commands)


class _Processes:
    """The processes, and whether they are stopped."""

    def __init__(self) -> None:
        self._running: set[asyncio.subprocess.Process] = set()
        self._stopping = asyncio.Event()

    async def serve(self, commands: Sequence[Sequence[str]]) -> int:
        on_stop_signals(self._stop)
        async with asyncio.TaskGroup() as tasks:
            serving = [tasks.create_task(self._serve(command)) for command in commands]
        return next((status for task in serving if (status := task.result())), 0)

    async def _serve(self, command: Sequence[str]) -> int:
        while True:
            # In a separate process group: a terminal's Ctrl-C arrives only here, and is passed on once.
            process = await asyncio.create_subprocess_exec(*command, process_group=0)
            self._running.add(process)
            if self._stopping.is_set():
                _terminate(process)
            log.info("started process %d", process.pid)
            try:
                status = await process.wait()
            except BaseException:  # cancelled: a process that ends after the event loop would leave its transport open
                _terminate(process)
                try:
                    await asyncio.wait_for(process.wait(), ENDING)
                except TimeoutError:
                    with contextlib.suppress(ProcessLookupError):  # it has just ended
                        process.kill()
                    await process.wait()
                raise
            finally:
                self._running.discard(process)
            if self._stopping.is_set():
                return max(status, 0)
            if status >= 0:
                if status:
                    log.error("process %d ended with status %d: stopping the others", process.pid, status)
                    self._stop()
                return status
            log.error("process %d was killed by %s: starting another", process.pid, _signal_name(-status))
            try:
                await asyncio.wait_for(self._stopping.wait(), AGAIN)
            except TimeoutError:
                continue
            return 0

    def _stop(self) -> None:
        self._stopping.set()
        for process in self._running:
            _terminate(process)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal other than the first and the last
        return f"signal {number}"


def _terminate(process: asyncio.subprocess.Process) -> None:
    """Send SIGTERM, unless the process has ended and its task does not know it yet.

    The process's own `send_signal` would read the status of an ended process, and its task would get 255 instead.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
