"""The znodes below a queue's own: created when the queue is opened, and removed when it is deleted.

Lanes are not among those that are created: the first put to a lane creates it.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.layout import is_deleted, is_of_curator_or_kazoo, name_at
from aiozkqueue.runtime.strings import Names
from aiozkqueue.zookeeper import (
    PAGE,
    Check,
    Create,
    Delete,
    MultiError,
    NoAuthError,
    NoNodeError,
    NotEmptyError,
    below,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.layout import QueuePaths, StoredConfig
    from aiozkqueue.zookeeper import ZooKeeper

#: The folders that are cleared first: without its message and its lock, no claim can be committed.
_FIRST: Final = ("items", "lanes", "later", "locks")


async def exists(zookeeper: ZooKeeper, paths: QueuePaths, since: int | None = None) -> bool:
    """Return whether a queue exists (``since`` this time, ms, not created again after it). Raises: NoAuthError."""
    await zookeeper.sync(paths.base)
    items, deleted = await asyncio.gather(zookeeper.exists(paths.items), is_marked(zookeeper, paths))
    return items is not None and not deleted and (since is None or items.ctime <= since)


async def is_marked(zookeeper: ZooKeeper, paths: QueuePaths) -> bool:
    """Whether a queue is marked as deleted. A queue that this user may not read counts as one that is not."""
    try:
        return is_deleted((await zookeeper.read(paths.base)).data)
    except (NoNodeError, NoAuthError):
        return False


def folders_of(paths: QueuePaths) -> list[str]:
    """Return the znodes that every queue of our own layout has."""
    return [paths.items, paths.lanes, paths.locks, paths.metas, paths.dlq, paths.consumers, paths.due, paths.keys]


async def complete(
    zookeeper: ZooKeeper, paths: QueuePaths, folders: Sequence[str], config: StoredConfig, version: int
) -> None:
    """Create the missing znodes of a queue: ``folders``, and others that its configuration of this version requires.

    Raises: ZooKeeperError: MultiError also if another process has created one of them, or deleted the queue, in the
    meantime; InvalidOptionError: the path is that of a queue of Curator or kazoo. kazoo would deliver our folders.
    """
    present = await zookeeper.children(paths.base)
    if name_at(paths.items) not in present and any(map(is_of_curator_or_kazoo, present)):
        msg = f"queue {paths.name!r}: {paths.base} is a queue of Curator or kazoo; choose another root or name"
        raise InvalidOptionError(f"{msg}, or use curator_queue or kazoo_queue")
    wanted = [*folders, paths.later] if config.scheduled else folders
    missing = [Create(path) for path in wanted if name_at(path) not in present]
    if missing:
        await zookeeper.multi([Check(paths.base, version), *missing])


async def clear(zookeeper: ZooKeeper, base: str, version: int) -> None:
    """Remove our znodes below that of a deleted queue, whose version is given. Several processes may do this at once.

    Each multi checks the version. So nothing is removed from a queue that was created again, which has a later one.

    Raises: ZooKeeperError: MultiError if the queue was created again in the meantime.
    """
    names = [name for name in await below(zookeeper, base) if not is_of_curator_or_kazoo(name)]
    guard = Check(base, version)
    for name in sorted(names, key=lambda name: (name not in _FIRST, name)):
        await _remove(zookeeper, guard, f"{base}/{name}")


class _Listed(Names):
    """A listing of any length."""

    def take(self, names: list[str]) -> None:
        """Add a part of it."""
        self.extend(names)


async def _remove(zookeeper: ZooKeeper, guard: Check, path: str) -> None:
    """Remove a znode with all below it, while the guard holds."""
    while True:
        try:
            listed = await zookeeper.children_into(path, _Listed)
        except NoNodeError:
            return
        names = iter(listed)
        while page := [f"{path}/{name}" for name in islice(names, PAGE)]:
            await _remove_page(zookeeper, guard, page)
        try:
            await zookeeper.multi([guard, Delete(path)])
        except MultiError as error:
            if isinstance(error.error, NotEmptyError):
                continue  # an operation that was in progress has created a znode
            if not _is_gone(error):
                raise
        return


async def _remove_page(zookeeper: ZooKeeper, guard: Check, paths: list[str]) -> None:
    """Remove several znodes, at best in one request."""
    while paths:
        try:
            await zookeeper.multi([guard, *map(Delete, paths)])
        except MultiError as error:
            if isinstance(error.error, NotEmptyError):
                for path in paths:  # its siblings are probably not empty either
                    await _remove(zookeeper, guard, path)
            elif _is_gone(error):
                del paths[error.index - 1]
                continue
            else:
                raise
        return


def _is_gone(error: MultiError) -> bool:
    """Whether a removal was refused because another process was faster. The guard is the first operation."""
    return isinstance(error.error, NoNodeError) and error.index > 0
