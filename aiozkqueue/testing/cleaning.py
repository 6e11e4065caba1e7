"""Deleting what a test has left on a server that others use too."""

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
# A test's last sessions may be writing still, or hold ephemerals: looked at again so often.
_ATTEMPTS: Final = 3
_PATIENCE: Final = 3.0


def delete_tree(hosts: str, path: str) -> None:
    """Delete a znode and all below it. What the server does not let go of, or a server that is away, is left.

    Blocks; may be called beside a running event loop.
    """
    # Its own thread has no loop yet, whatever the test's framework does with the main thread's.
    deleting = threading.Thread(target=lambda: asyncio.run(_delete(hosts, path)), name="aiozkqueue-delete-tree")
    deleting.start()
    deleting.join()


async def _delete(hosts: str, path: str) -> None:
    try:
        client = await connect(hosts, connect_timeout=_PATIENCE)
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
    left.append(path)  # last, in a batch of what is below it or after it
    while left:
        batch = left[:_BATCH]
        try:
            await client.multi([Delete(each) for each in batch])
        except MultiError as refused:
            # Most znodes of a queue are leaves; those that are not are found out by trying.
            await _make_way(client, path, batch[refused.index], refused.error)
            if isinstance(refused.error, NoNodeError):
                left.remove(batch[refused.index])
        else:
            del left[:_BATCH]


async def _make_way(client: ZooKeeperClient, parent: str, path: str, error: ZooKeeperError) -> None:
    """Do what lets the batch go on after the error at the path, or raise it."""
    if isinstance(error, NotEmptyError) and path != parent:
        await _delete_below(client, path)
    elif not isinstance(error, NoNodeError):
        raise error
