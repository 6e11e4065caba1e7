"""Pins: they keep clean-up away from a part of a history while it is being read.

Setting a pin writes to the folder of pins in the same multi, and every removal of history checks that folder at the
version at which the pins were listed. So from the moment a pin is set, nothing it protects is removed, not even by a
clean-up that had listed the pins before.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.layout import hour_of, parse_hour
from aiozkqueue.moments import moment_at
from aiozkqueue.queue.commit.unclaimed import read_all
from aiozkqueue.runtime.acl_errors import access_denied
from aiozkqueue.zookeeper import (
    Create,
    Delete,
    MultiError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    SetData,
    apply_until_answered,
)

from .history import milliseconds
from .listing import list_children

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.zookeeper import Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A pin that protects a queue's history, or the later part of it, from clean-up."""

    queue: str
    name: str
    """The owner's name: ``audit`` is the pin of `aiozkqueue audit`."""
    since: datetime
    """The earliest time from which records are kept."""
    changed: datetime
    """The time when it was set, in ZooKeeper's time."""


async def pins(handle: QueueHandle[Runtime]) -> list[Pin]:
    """Read the pins of a queue. Raises: AccessDeniedError."""
    names = sorted(await list_children(handle, handle.paths.pins))
    nodes = await read_all(handle, [handle.paths.pin(name) for name in names])
    return [
        Pin(
            queue=handle.name,
            name=name,
            since=moment_at(parse_hour(node.data.decode("utf-8", "replace")) or 0),
            changed=moment_at(node.stat.mtime),
        )
        for name, node in zip(names, nodes, strict=True)
        if node is not None
    ]


async def pin(handle: QueueHandle[Runtime], name: str, since: datetime) -> None:
    """Keep the history from the hour of ``since`` on until `unpin`, under a unique name.

    An existing pin of this name is moved. Records that have already been removed do not come back. A pin outlives the
    session that set it.

    Raises: AccessDeniedError, InvalidOptionError.
    """
    hour = hour_of(milliseconds(since, "since")).encode()
    path, folder = handle.paths.pin(name), SetData(handle.paths.pins, b"")
    new: list[Operation] = [Create(path, hour), folder]
    moved: list[Operation] = [SetData(path, hour), folder]
    for change in cycle((new, moved)):  # the one is refused if the other applies
        await handle.zookeeper.ensure(handle.paths.pins)
        if await _apply(handle, change):
            return


async def unpin(handle: QueueHandle[Runtime], name: str) -> bool:
    """Remove a pin; return whether it existed. Raises: AccessDeniedError."""
    await handle.zookeeper.sync(handle.paths.base)
    if name not in await list_children(handle, handle.paths.pins):
        return False
    await _apply(handle, [Delete(handle.paths.pin(name))])  # or another client removes it
    return True


class Pins(NamedTuple):
    """The pins of a queue as they were at a version of their folder."""

    version: int
    first: str | None
    """The earliest pinned hour; None: nothing is pinned."""


async def read_pins(handle: QueueHandle[Runtime]) -> Pins:
    """Read the pins, the version of their folder first. A pin without a valid hour pins everything.

    Raises: NoAuthError of the zookeeper package.
    """
    paths, zookeeper = handle.paths, handle.zookeeper
    await zookeeper.ensure(paths.pins)
    stat = await zookeeper.exists(paths.pins)
    names = await zookeeper.children(paths.pins)
    nodes = await zookeeper.read_many([paths.pin(name) for name in names]) if names else []
    hours = [node.data.decode("utf-8", "replace") for node in nodes if node is not None]
    first = min((hour if parse_hour(hour) is not None else "" for hour in hours), default=None)
    return Pins(0 if stat is None else stat.version, first)


async def _apply(handle: QueueHandle[Runtime], change: Sequence[Operation]) -> bool:
    """Apply a change; return False if it is refused because a znode exists or is missing. Raises: AccessDeniedError."""
    try:
        await apply_until_answered(handle.zookeeper, change)
    except MultiError as error:
        if isinstance(error.error, NoAuthError):
            raise access_denied(handle.name, error.error) from error
        if not isinstance(error.error, NoNodeError | NodeExistsError):
            raise
        return False
    return True
