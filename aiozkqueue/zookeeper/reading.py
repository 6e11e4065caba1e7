"""Reads of several requests, or of znodes that may be missing, over any implementation of `interface.ZooKeeper`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiozkqueue.zookeeper.errors import NoAuthError, NoNodeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.zookeeper.interface import Node, Versioned, ZooKeeper

#: Znodes read at a time.
PAGE: Final = 100


async def below(zookeeper: ZooKeeper, path: str, *, generation: int | None = None) -> list[str]:
    """List the children of a znode; empty if it does not exist. Raises: as `ZooKeeper.children`, except NoNodeError."""
    try:
        return await zookeeper.children(path, generation=generation)
    except NoNodeError:
        return []


async def read_latest(zookeeper: ZooKeeper, path: str) -> Node:
    """Read a znode; a server that does not know it catches up with the leader first. Raises: as `ZooKeeper.read`."""
    try:
        return await zookeeper.read(path)
    except NoNodeError:
        await zookeeper.sync(path)
        return await zookeeper.read(path)


async def read_pages(zookeeper: ZooKeeper, paths: Sequence[str]) -> list[Node | None]:
    """Read many znodes, a page at a time. Raises: as `ZooKeeper.read_many`."""
    nodes: list[Node | None] = []
    for start in range(0, len(paths), PAGE):
        nodes += await zookeeper.read_many(paths[start : start + PAGE])
    return nodes


async def read_separately(
    zookeeper: ZooKeeper, sets: Sequence[Sequence[str]], *, generation: int | None = None
) -> list[list[Versioned | None] | NoAuthError]:
    """Read several sets of znodes, each set at one moment; an unreadable set is replaced by its error.

    Use it after one read of all sets was refused, because that error names only one znode.
    """

    async def read(paths: Sequence[str]) -> list[Versioned | None] | NoAuthError:
        try:
            return await zookeeper.read_versioned(paths, generation=generation)
        except NoAuthError as error:
            return error

    return await asyncio.gather(*(read(paths) for paths in sets))
