"""SIGINT and SIGTERM for long-running commands: the first signal drains, the second cancels the command."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable


def drain_on_signals(stop: Callable[[], None]) -> None:
    """Call ``stop`` at the first signal from now on, and cancel the current task at each further one.

    This holds until the event loop is closed: a signal that comes while the command closes its session must not kill
    it, because its locks would then stay for a session timeout.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    stopping = False

    def received() -> None:
        nonlocal stopping
        if stopping and task is not None:
            task.cancel()
        stopping = True
        stop()

    for kind in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(kind, received)
