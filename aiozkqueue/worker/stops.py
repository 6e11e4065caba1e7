"""The signals that stop a worker."""

from __future__ import annotations

import signal


def stop_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a worker.

    A terminal that closes sends SIGHUP, but only to the processes in its foreground: without a handler, the processes
    that these have started would continue alone. Under ``nohup``, which ignores SIGHUP, it stays ignored.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return signal.SIGTERM, signal.SIGINT
    return signal.SIGTERM, signal.SIGINT, signal.SIGHUP
