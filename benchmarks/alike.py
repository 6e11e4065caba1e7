"""The event loop that all Python subjects share, aiozkqueue and its peers.

Each subject is also measured in a `settled_heap`, as `aiozkqueue worker` runs its services, so that the garbage
collector does not scan the benchmark's own imports.
"""

from __future__ import annotations

import asyncio
import os
from importlib.metadata import version
from importlib.util import find_spec

LOOPS = ("uvloop", "asyncio")
#: The environment variable that names the chosen loop to child processes.
_CHOSEN = "AIOZKQUEUE_BENCHMARK_LOOP"


def default_loop() -> str:
    """Name the default loop of the asyncio subjects: uvloop if it is installed."""
    return os.environ.get(_CHOSEN) or ("uvloop" if find_spec("uvloop") else "asyncio")


def use_loop(name: str) -> None:
    """Run every `asyncio.run` of this process and its child processes on this loop."""
    os.environ[_CHOSEN] = name
    if name == "uvloop":
        import uvloop  # noqa: PLC0415 - it is optional

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


def loop_used() -> str:
    """Name the loop in use, with its version."""
    name = default_loop()
    return f"uvloop {version('uvloop')}" if name == "uvloop" else name
