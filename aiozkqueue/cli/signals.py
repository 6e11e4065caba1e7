"""SIGINT and SIGTERM for long-running commands: the first signal drains, the second cancels the command."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def draining(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` at the first signal, and cancel the current task at the second."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    stopping = False

    def received() -> None:
        nonlocal stopping
        if stopping and task is not None:
            task.cancel()
        stopping = True
        stop()

    kinds = (signal.SIGINT, signal.SIGTERM)
    for kind in kinds:
        loop.add_signal_handler(kind, received)
    try:
        yield
    finally:
        for kind in kinds:
            loop.remove_signal_handler(kind)
