"""What every Python subject is given alike, ours and the peers': the event loop.

Each is measured in a `settled_heap`, too, as `aiozkqueue worker` gives its services one. What the benchmark itself has
imported and kept is not the client's to be searched for garbage.
"""

from __future__ import annotations

import asyncio
import os
from importlib.metadata import version
from importlib.util import find_spec

LOOPS = ("uvloop", "asyncio")
#: Tells processes that take part which loop has been chosen.
_CHOSEN = "AIOZKQUEUE_BENCHMARK_LOOP"


def default_loop() -> str:
    """Name the loop that asyncio's subjects run on unless told: uvloop where it is installed."""
    return os.environ.get(_CHOSEN) or ("uvloop" if find_spec("uvloop") else "asyncio")


def use_loop(name: str) -> None:
    """Run every `asyncio.run` of this process, and of those that it starts, on this loop."""
    os.environ[_CHOSEN] = name
    if name == "uvloop":
        import uvloop  # noqa: PLC0415 - it is optional

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


def loop_used() -> str:
    """Name the loop in use, with its version."""
    name = default_loop()
    return f"uvloop {version('uvloop')}" if name == "uvloop" else name
