"""Ends a Python process of Spark when its JVM has ended.

Spark's Python processes end when they read the end of their JVM's socket. A process that waits for ZooKeeper does not
read the socket, so it would outlive its JVM until the servers are available again. A thread therefore watches the
parent process, which is the JVM or the daemon that forks the JVM's workers. The process can be ended at once, because a
driver or a task may be killed at any point.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Final

log: Final = logging.getLogger(__name__)

#: The interval between two checks, seconds.
TICK: Final = 1.0
# Spark sets variables with this prefix only in its Python processes: a port, a secret, or a socket.
_SPARKS: Final = "PYTHON_WORKER_FACTORY_"
_watching: set[int] = set()


def is_of_spark() -> bool:
    """Whether this is one of Spark's Python processes: the source of a stream, a task or a writer."""
    return any(name.startswith(_SPARKS) for name in os.environ)


def end_with_parent() -> None:
    """End this process as soon as its parent has ended, if it is one of Spark's Python processes."""
    own = os.getpid()  # a fork does not have the threads of its parent
    if own in _watching or not is_of_spark():
        return
    _watching.add(own)
    threading.Thread(target=_watch, args=(os.getppid(),), name="aiozkqueue-orphans", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(TICK)
    log.warning("the JVM of this Spark process (parent %d) has ended; process %d ends too", parent, os.getpid())
    os._exit(1)
