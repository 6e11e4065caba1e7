"""Znodes that everyone may use."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiozkqueue.zookeeper import PAGE, NoAuthError, NoNodeError, Permission

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.zookeeper import ZooKeeper

#: The maximum number of children of one folder whose ACLs are checked.
ACL_SAMPLE: Final = 200
_CHANGES: Final = Permission.ALL & ~Permission.READ


async def open_znodes(zookeeper: ZooKeeper, paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the paths that everyone may change, and the paths that everyone may only read.

    Both lists are empty if the session has no credentials.
    """
    open_to_all: list[str] = []
    readable: list[str] = []
    if not zookeeper.authenticated:
        return open_to_all, readable
    for start in range(0, len(paths), PAGE):
        page = paths[start : start + PAGE]
        granted = await asyncio.gather(*(_granted_to_all(zookeeper, path) for path in page))
        for path, permissions in zip(page, granted, strict=True):
            if permissions & _CHANGES:
                open_to_all.append(path)
            elif permissions & Permission.READ:
                readable.append(path)
    return open_to_all, readable


async def _granted_to_all(zookeeper: ZooKeeper, path: str) -> Permission:
    granted = Permission(0)
    try:
        entries = await zookeeper.acl(path)
    except (NoNodeError, NoAuthError):  # deleted in the meantime, or not readable by this user
        return granted
    for entry in entries:
        if entry.scheme == "world":
            granted |= entry.permissions
    return granted
