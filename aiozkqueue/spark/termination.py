"""The end of the process of a stream's source: Spark sends it SIGTERM twice when the query ends, and does not wait.

By default the signal would end the process at once, and leave messages held that Spark does not know. Here it
ends Spark's loop, which then stops the reader. That takes a few seconds at most.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Final

from .orphans import is_of_spark

if TYPE_CHECKING:
    from types import FrameType

#: A signal handler of the process has received these.
_received: Final = set[int]()


def stop_on_sigterm() -> None:
    """Have SIGTERM raise SystemExit, if this is one of Spark's Python processes."""
    own = threading.current_thread() is threading.main_thread()
    if own and is_of_spark() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _raise)


def end_if_signalled() -> None:
    """End this process if it has received SIGTERM: Spark has closed its socket, to which its loop would write."""
    if _received:
        os._exit(0)


def _raise(number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _received.add(number)
    raise SystemExit(128 + number)
