"""The messages that locks hold: an item's lock is named after it, a group's and a bundle's are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.layout import BundleName, ItemRef, MalformedError, is_bundle
from aiozkqueue.queue.candidates.collectors import sequence_of
from aiozkqueue.queue.candidates.groups import is_group
from aiozkqueue.queue.commit.unclaimed import possible_locks

from .bundles import bundle_pages
from .listing import by_rank, collect_children, locked_ids
from .stats import configuration, lanes_of, stat_lanes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from aiozkqueue.layout import StoredConfig
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.state.queue_state import QueueState


async def messages_of_locks(
    handle: QueueHandle[Runtime], locks: Collection[str], most: int | None = None
) -> Callable[[str], list[str]]:
    """Return a function that gives the messages of each of these locks.

    A group's lock holds the oldest message of the group, and a bundle's the messages that are left in the bundle. The
    lanes are listed if the queue has bundles, or if a lock is a group's. If they have more than ``most`` znodes, they
    are not listed: such a lock then counts as one message with the lock's own id.

    Raises: AccessDeniedError, PayloadError.
    """
    config = await configuration(handle)
    if config is None or not (config.bundled or any(map(is_group, locks))):
        return lambda lock: [lock]
    if most is not None and sum(stat.num_children for stat in (await stat_lanes(handle)).values()) > most:
        return lambda lock: [lock]
    found: dict[str, list[str]] = {lock: [] for lock in locks if is_group(lock)}
    bundles: list[str] = []
    for folders in by_rank(handle.state, await lanes_of(handle, config)):
        for folder in folders:
            names = await collect_children(handle, folder, lambda: _Holding(handle.state, config, locks))
            lane = handle.paths.place_of(folder)
            bundles += [ItemRef(lane, name).path for name in names.bundles]
            for lock, name in names.heads.items():
                item = handle.state.parse_item(name)
                if item is not None and not found.get(lock):
                    found[lock] = [item.id]
    async for page in bundle_pages(handle, bundles):
        for _, state in page:
            try:
                found[state.name.id] = [message.id for message, _ in state.messages()]
            except MalformedError:
                continue  # its consumer makes it a dead letter
    return lambda lock: found.get(lock, [lock])


async def held_of_groups(handle: QueueHandle[Runtime], config: StoredConfig) -> frozenset[str]:
    """Return the ids of the messages that the locks of groups, or of an ordered queue, hold.

    Raises: AccessDeniedError, PayloadError.
    """
    if not config.grouped and config.ordered is None:
        return frozenset()
    groups = [lock for lock in await locked_ids(handle) if is_group(lock)]
    messages_of = await messages_of_locks(handle, groups)
    return frozenset(message for lock in groups for message in messages_of(lock))


class _Holding:
    """A collector of the bundles that these locks hold, and of the oldest item of each group that they hold."""

    def __init__(self, state: QueueState, config: StoredConfig, locks: Collection[str]) -> None:
        self._state = state
        self._config = config
        self._locks = locks
        self.bundles: list[str] = []
        self.heads: dict[str, str] = {}

    def take(self, names: list[str]) -> None:
        """Keep the names that locks hold."""
        for name in names:
            if is_bundle(name):
                bundle = BundleName.parse(name)
                if bundle is not None and bundle.id in self._locks:
                    self.bundles.append(name)
                continue
            try:
                possible = possible_locks(self._state, name, self._config)
            except MalformedError:
                continue  # another program's znode
            for lock in possible:
                if is_group(lock) and lock in self._locks:
                    head = self.heads.get(lock)
                    if head is None or sequence_of(name) < sequence_of(head):
                        self.heads[lock] = name
