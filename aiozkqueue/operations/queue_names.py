"""The names of the existing queues."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiozkqueue.errors import InvalidNameError
from aiozkqueue.layout import QueuePaths, check_queue_name
from aiozkqueue.queue.state.znodes import exists
from aiozkqueue.zookeeper import PAGE, NoAuthError, below

if TYPE_CHECKING:
    from aiozkqueue.queue.commit.runtime import Runtime


async def queue_names(runtime: Runtime) -> list[str]:
    """List the existing queues, also those that this user may not read, sorted.

    The session keeps no state of them, so they do not count as queues that it uses.

    Raises: NoAuthError: this user may not list the root.
    """
    names = [name for name in sorted(await below(runtime.zookeeper, runtime.root)) if is_queue_name(name)]
    found: list[str] = []
    for start in range(0, len(names), PAGE):
        page = names[start : start + PAGE]
        existing = await asyncio.gather(*(_exists(runtime, name) for name in page))
        found += [name for name, present in zip(page, existing, strict=True) if present]
    return found


async def _exists(runtime: Runtime, name: str) -> bool:
    try:
        return await exists(runtime.zookeeper, QueuePaths(runtime.root, name))
    except NoAuthError:
        return True


def is_queue_name(name: str) -> bool:
    """Whether a queue can have this name."""
    try:
        check_queue_name(name)
    except InvalidNameError:
        return False
    return True
