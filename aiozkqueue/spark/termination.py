"""Stops the source of a stream when its query ends. Spark then sends SIGTERM to its process twice, and does not wait.

By default, the signal would end the process at once, and messages that Spark has not requested would stay held. With
this handler, the signal ends Spark's loop, which then stops the reader. This takes at most a few seconds.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Final

from .orphans import is_of_spark

if TYPE_CHECKING:
    from types import FrameType

#: The signals that the handler of this process has received.
_received: Final = set[int]()


def stop_on_sigterm() -> None:
    """Make SIGTERM raise SystemExit, if this is one of Spark's Python processes."""
    own = threading.current_thread() is threading.main_thread()
    if own and is_of_spark() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _raise)


def end_if_signalled() -> None:
    """End this process if it has received SIGTERM: Spark has closed the socket that its loop would write to."""
    if _received:
        os._exit(0)


def _raise(number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _received.add(number)
    raise SystemExit(128 + number)
