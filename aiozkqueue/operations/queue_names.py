"""The names of the existing queues."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiozkqueue.errors import InvalidNameError
from aiozkqueue.layout import QueuePaths, check_queue_name, is_deleted
from aiozkqueue.queue.state.znodes import exists
from aiozkqueue.zookeeper import PAGE, NoAuthError, ServerError, below, read_separately

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.zookeeper import ZooKeeper


async def queue_names(runtime: Runtime) -> list[str]:
    """List the existing queues, also those that a server refuses to read, sorted.

    The session keeps no state of them, so they do not count as queues that it uses.

    Raises: NoAuthError: this user may not list the root.
    """
    return await _present(runtime, _exist)


async def listed_queues(runtime: Runtime) -> list[str]:
    """List the queues as `queue_names` does, but as this session's server knows them, which costs it less.

    Raises: as `queue_names`.
    """
    return await _present(runtime, _are_known)


async def _present(
    runtime: Runtime, check: Callable[[ZooKeeper, Sequence[QueuePaths]], Awaitable[Sequence[bool]]]
) -> list[str]:
    """Return the names below the root that this check confirms, a page at a time."""
    names = [name for name in sorted(await below(runtime.zookeeper, runtime.root)) if is_queue_name(name)]
    found: list[str] = []
    for start in range(0, len(names), PAGE):
        page = names[start : start + PAGE]
        present = await check(runtime.zookeeper, [QueuePaths(runtime.root, name) for name in page])
        found += [name for name, confirmed in zip(page, present, strict=True) if confirmed]
    return found


async def _exist(zookeeper: ZooKeeper, queues: Sequence[QueuePaths]) -> Sequence[bool]:
    return await asyncio.gather(*(_exists(zookeeper, paths) for paths in queues))


async def _exists(zookeeper: ZooKeeper, paths: QueuePaths) -> bool:
    try:
        return await exists(zookeeper, paths)
    except (NoAuthError, ServerError):
        return True


async def _are_known(zookeeper: ZooKeeper, queues: Sequence[QueuePaths]) -> Sequence[bool]:
    known: list[bool] = []
    for found in await read_separately(zookeeper, [[paths.base, paths.items] for paths in queues]):
        if isinstance(found, NoAuthError):
            known.append(True)
        else:
            base, items = found
            known.append(base is not None and items is not None and not is_deleted(base.data))
    return known


def is_queue_name(name: str) -> bool:
    """Whether a queue can have this name."""
    try:
        check_queue_name(name)
    except InvalidNameError:
        return False
    return True
