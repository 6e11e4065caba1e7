"""Znodes that everybody may use."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiozkqueue.zookeeper import PAGE, NoAuthError, NoNodeError, Permission

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.zookeeper import ZooKeeper

#: Children of one folder whose ACLs are looked at.
ACL_SAMPLE: Final = 200
_CHANGES: Final = Permission.ALL & ~Permission.READ


async def open_znodes(zookeeper: ZooKeeper, paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return which of these everybody may change, and which everybody may read only; none without credentials."""
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
    except (NoNodeError, NoAuthError):  # deleted meanwhile, or closed even to this user
        return granted
    for entry in entries:
        if entry.scheme == "world":
            granted |= entry.permissions
    return granted
