"""Expired timed locks: leases and backoffs that have ended, but that no consumer has removed yet."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from aiozkqueue.errors import AccessDeniedError
from aiozkqueue.layout import parse_due
from aiozkqueue.queue.candidates.collectors import Matching
from aiozkqueue.queue.commit.unclaimed import read_sets
from aiozkqueue.queue.redelivery.timed_locks import waiting
from aiozkqueue.zookeeper import PAGE

from .listing import collect_children
from .shown_time import shown_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime


class _Count:
    """Counts the due nodes whose time has passed."""

    def __init__(self, now: int) -> None:
        self._now = now
        self.number = 0

    def take(self, names: list[str]) -> None:
        self.number += sum(_is_over(name, self._now) for name in names)


async def count_ended(handle: QueueHandle[Runtime]) -> int:
    """Count the timed locks whose time has passed. This lists all timed locks. Raises: AccessDeniedError."""
    now = await shown_time(handle.runtime)
    return (await collect_children(handle, handle.paths.due, partial(_Count, now))).number


async def ended_locks(
    handle: QueueHandle[Runtime], unreadable: list[AccessDeniedError] | None = None, *, moment: int | None = None
) -> AsyncIterator[str]:
    """Yield the ids of messages, and the groups, whose timed locks have expired at a moment (None: now).

    ``moment`` is in milliseconds of ZooKeeper's time. Locks whose due nodes this user may not read are left out; their
    errors are added to ``unreadable``.

    Raises: AccessDeniedError: the due nodes may not be listed.
    """
    now = await shown_time(handle.runtime) if moment is None else moment
    over = partial(Matching, partial(_is_over, now=now))
    names = iter((await collect_children(handle, handle.paths.due, over)).names)
    while page := list(islice(names, PAGE)):
        found = await read_sets(handle, [(f"{handle.paths.due}/{name}",) for name in page])
        for due, nodes in zip(map(parse_due, page), found, strict=True):
            if isinstance(nodes, AccessDeniedError):
                if unreadable is not None:
                    unreadable.append(nodes)
            elif due is not None:
                yield waiting(nodes[0], due[1]).lock


def _is_over(name: str, now: int) -> bool:
    due = parse_due(name)
    return due is not None and due[0] <= now
