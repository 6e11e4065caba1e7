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
# Of a znode with more children, such as the items of a deep queue, the children are taken for leaves.
_LISTED: Final = 50
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
    left = [path]
    level = [path]
    while level:
        below = await asyncio.gather(*(_children(client, each) for each in level))
        left += [each for children in below for each in children]
        level = [each for children in below if len(children) <= _LISTED for each in children]
    left.reverse()  # the children of each come earlier in its batch or in one before
    while left:
        batch = left[:_BATCH]
        try:
            await client.multi([Delete(each) for each in batch])
        except MultiError as refused:
            # A failed delete reveals znodes that are no leaves, and those that others write or delete meanwhile.
            await _make_way(client, path, batch[refused.index], refused.error)
            if isinstance(refused.error, NoNodeError):
                left.remove(batch[refused.index])
        else:
            del left[:_BATCH]


async def _children(client: ZooKeeperClient, path: str) -> list[str]:
    try:
        return [f"{path}/{name}" for name in await client.children(path)]
    except NoNodeError:
        return []


async def _make_way(client: ZooKeeperClient, parent: str, path: str, error: ZooKeeperError) -> None:
    """Resolve the error at the path so that the batch can continue, or raise it."""
    if isinstance(error, NotEmptyError) and path != parent:
        await _delete_below(client, path)
    elif not isinstance(error, NoNodeError):
        raise error
