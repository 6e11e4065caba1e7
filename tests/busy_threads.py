"""An event loop whose threads are all occupied, as by blocking calls of handlers."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def busy_threads() -> AsyncIterator[None]:
    """Occupy all threads of the loop's executor while the block runs."""
    loop, done = asyncio.get_running_loop(), threading.Event()
    executor = ThreadPoolExecutor(1)
    loop.set_default_executor(executor)
    waiting = loop.run_in_executor(None, done.wait)
    try:
        yield
    finally:
        done.set()
        await waiting
        executor.shutdown(wait=False)
        loop.set_default_executor(ThreadPoolExecutor())
