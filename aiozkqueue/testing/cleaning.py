"""Deletion of the znodes that a test has left on a shared server."""

from __future__ import annotations

import asyncio
import threading
from typing import Final

from aiozkqueue.zookeeper import (
    Delete,
    MultiError,
    NoNodeError,
    NotEmptyError,
    ZooKeeperClient,
    ZooKeeperError,
    connect,
)

_BATCH: Final = 500
# The number of attempts: a test's last sessions may still be writing or hold ephemerals.
_ATTEMPTS: Final = 3
_CONNECT_TIMEOUT: Final = 3.0


def delete_tree(hosts: str, path: str) -> None:
    """Delete a znode and its descendants. Znodes that cannot be deleted, or whose server is away, are left.

    Blocks; it can be called while an event loop is running.
    """
    # A new thread has no event loop, whatever the test framework does with the main thread's.
    deleting = threading.Thread(target=lambda: asyncio.run(_delete(hosts, path)), name="aiozkqueue-delete-tree")
    deleting.start()
    deleting.join()


async def _delete(hosts: str, path: str) -> None:
    try:
        client = await connect(hosts, connect_timeout=_CONNECT_TIMEOUT)
    except ZooKeeperError:
        return
    try:
        for _ in range(_ATTEMPTS):
            try:
                async with asyncio.timeout(60):
                    await _delete_below(client, path)
            except NotEmptyError:
                continue
            return
    except (ZooKeeperError, TimeoutError):
        return
    finally:
        await client.close()


async def _delete_below(client: ZooKeeperClient, path: str) -> None:
    try:
        left = [f"{path}/{name}" for name in await client.children(path)]
    except NoNodeError:
        return
    left.append(path)  # last: its children come earlier in this batch or in one before
    while left:
        batch = left[:_BATCH]
        try:
            await client.multi([Delete(each) for each in batch])
        except MultiError as refused:
            # Most znodes of a queue are leaves; a failed delete reveals the others.
            await _make_way(client, path, batch[refused.index], refused.error)
            if isinstance(refused.error, NoNodeError):
                left.remove(batch[refused.index])
        else:
            del left[:_BATCH]


async def _make_way(client: ZooKeeperClient, parent: str, path: str, error: ZooKeeperError) -> None:
    """Resolve the error at the path so that the batch can continue, or raise it."""
    if isinstance(error, NotEmptyError) and path != parent:
        await _delete_below(client, path)
    elif not isinstance(error, NoNodeError):
        raise error
