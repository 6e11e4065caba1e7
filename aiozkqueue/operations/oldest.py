"""The oldest waiting message of a queue, found by its name: messages in flight and delayed messages do not count."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.errors import AccessDeniedError
from aiozkqueue.layout import HOUR, BundleName, MalformedError, decode, hour_named, name_at
from aiozkqueue.queue.candidates.groups import is_group
from aiozkqueue.queue.commit.unclaimed import read_sets
from aiozkqueue.runtime.strings import clear_gradually

from .bundles import bundle_places
from .earlier_locks import held_by_earlier_locks
from .ended_locks import ended_locks
from .listing import first_items, locked_ids
from .shown_time import shown_time

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from aiozkqueue.layout import StoredConfig
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.runtime.strings import Strings
    from aiozkqueue.zookeeper import Node


class Oldest(NamedTuple):
    """The oldest waiting message, or the bundle that holds it."""

    since: int
    """When it was put, or its due time if that is later, ms since 1970 in ZooKeeper's time."""
    path: str
    """Its znode."""
    lock: str
    """The path of the lock with which a consumer would claim it; an expired lock may still be there."""


async def oldest_waiting(
    handle: QueueHandle[Runtime],
    config: StoredConfig | None,
    folders: Sequence[str],
    unreadable: list[AccessDeniedError] | None = None,
) -> Oldest | None:
    """Find the oldest waiting message in these folders; None if no message waits.

    This lists the folders, the locks and the due nodes. A retry does not change the time since which a message waits.
    The errors of due nodes that this user may not read are added to ``unreadable``: their messages count as delayed.

    Raises: AccessDeniedError.
    """
    held = await locked_ids(handle)
    async for lock in ended_locks(handle, unreadable):
        held.discard(lock)
    by_earlier = set[str]() if config is None else await held_by_earlier_locks(handle, config, folders, held)
    reader = _OldestReader(handle, config, held, by_earlier, await shown_time(handle.runtime))
    dated = [first for folder in folders if (first := await reader.oldest_in(folder)) is not None]
    await clear_gradually(*held.parts)
    return min(dated, default=None)


class _OldestReader:
    """Finds the first message of a folder that no lock holds, and that this user may read."""

    def __init__(
        self,
        handle: QueueHandle[Runtime],
        config: StoredConfig | None,
        held: Strings,
        by_earlier: Collection[str],
        now: int,
    ) -> None:
        self._handle = handle
        self._config = config
        self._held = held
        self._by_earlier = by_earlier  # messages that locks of another order hold for their group
        self._groups = sum(map(is_group, held))
        self._now = now

    async def oldest_in(self, folder: str) -> Oldest | None:
        """Return the oldest waiting message of a folder that this user may read."""
        hour = hour_named(folder.removeprefix(f"{self._handle.paths.later}/"))
        if hour is not None and hour > self._now // HOUR:
            return None
        unreadable: set[str] = set()
        while True:
            first = [*await self._first_item(folder, unreadable), *await self._first_bundle(folder, unreadable)]
            found = await read_sets(self._handle, [(message.path,) for message in first])
            denied = [
                message.path for message, node in zip(first, found, strict=True) if isinstance(node, AccessDeniedError)
            ]
            if not denied:
                nodes = [node[0] for node in found if not isinstance(node, AccessDeniedError)]
                dated = [_dated(message, node) for message, node in zip(first, nodes, strict=True) if node is not None]
                return min(dated, default=None)
            unreadable.update(denied)

    async def _first_item(self, folder: str, unreadable: set[str]) -> list[Oldest]:
        heads: set[str] = set()  # the first message of a held group is the one in flight; the others wait
        for entry in await first_items(self._handle, [folder], 1 + self._groups + len(unreadable), self._may_wait):
            own = self._lock(entry.item.text)
            if own in self._held and own not in heads:
                heads.add(own)
            elif entry.path not in unreadable and (entry.item.due is None or entry.item.due <= self._now):
                return [Oldest(entry.item.due or 0, entry.path, self._handle.paths.lock(own))]
        return []

    async def _first_bundle(self, folder: str, unreadable: set[str]) -> list[Oldest]:
        if self._config is not None and self._config.bundled:
            async for place in bundle_places(self._handle, [folder], self._is_free_bundle):
                path, own = self._handle.paths.at(place), BundleName.parse(name_at(place))
                if own is not None and path not in unreadable:
                    return [Oldest(0, path, self._handle.paths.lock(own.id))]
        return []

    def _lock(self, name: str) -> str:
        return self._handle.state.lock_id_of(name, self._config)

    def _may_wait(self, name: str) -> bool:
        try:
            lock, message = self._lock(name), self._handle.state.item_id(name)
        except MalformedError:  # not an item
            return False
        own = is_group(lock) or lock not in self._held
        return own and message not in self._held and message not in self._by_earlier

    def _is_free_bundle(self, name: str) -> bool:
        own = BundleName.parse(name)
        return own is not None and own.id not in self._held


def _dated(first: Oldest, node: Node) -> Oldest:
    """Add the time of the put, which a moved message keeps."""
    try:
        stamp = decode(node.data)[0].enqueued_at
    except MalformedError:
        stamp = None
    return first._replace(since=max(first.since, node.stat.ctime if stamp is None else stamp))
