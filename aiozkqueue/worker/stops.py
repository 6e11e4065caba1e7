"""The signals that stop a worker."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a worker.

    A terminal that closes sends SIGHUP, but only to the processes in its foreground: without a handler, the processes
    that these have started would continue alone. Under ``nohup``, which ignores SIGHUP, it stays ignored.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return signal.SIGTERM, signal.SIGINT
    return signal.SIGTERM, signal.SIGINT, signal.SIGHUP


def on_stop_signals(callback: Callable[[], object]) -> None:
    """Call back at each of these signals, until other handlers are set or the running event loop is closed."""
    loop = asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, callback)


class Stops:
    """Cancels the current task at each signal that stops a worker, while no service of it runs.

    `aiozkqueue.run` handles the signals itself and then removes its handlers. Without others, a signal would kill the
    worker while it closes its session, and the locks of its messages would stay for a session timeout.
    """

    def __init__(self) -> None:
        self.requested = False
        """Whether a signal has cancelled the task."""
        self._task = asyncio.current_task()

    def handle(self) -> None:
        """Handle the signals from now on, until other handlers are set or the event loop is closed."""
        on_stop_signals(self._received)

    def _received(self) -> None:
        self.requested = True
        if self._task is not None:
            self._task.cancel()
