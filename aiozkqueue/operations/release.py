"""The release of a queue's claims by force."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.errors import AccessDeniedError
from aiozkqueue.layout import parse_due
from aiozkqueue.queue.candidates.groups import is_group, lock_ids
from aiozkqueue.queue.commit.conditional import Change, settle_allowed
from aiozkqueue.queue.commit.unclaimed import read_sets
from aiozkqueue.runtime.acl_errors import partly_denied
from aiozkqueue.runtime.strings import clear_gradually
from aiozkqueue.zookeeper import Delete, SetData

from .bundles import force_open
from .listing import collect_children, locked_ids, walk
from .stats import configuration, lanes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.zookeeper import Node, Operation


async def release_claims(handle: QueueHandle[Runtime]) -> int:
    """Force every lock open; return how many. Later operations of the holders fail."""
    paths = handle.paths
    # The answer must include all claims before the call, whichever server answers.
    await handle.zookeeper.sync(paths.base)
    # Locks first: an item put and locked after the items were listed would be opened without raising its version.
    locks = await locked_ids(handle)
    dues = (await collect_children(handle, paths.due, _DueNodes)).names
    released, refused = 0, dict[str, AccessDeniedError]()
    config = await configuration(handle)
    if config is not None and config.bundled:
        released, refused = await force_open(handle, await lanes(handle))
    if config is not None and config.staged and config.grouped:
        younger = await _raise_younger(handle, {lock for lock in locks if is_group(lock)})
        for lock in younger:
            locks.discard(lock)
        refused |= younger
    async for page in walk(handle, await lanes(handle)):
        held: list[_Held] = []
        for item, path, *_ in page:
            for lock in lock_ids(item):
                if lock in locks:
                    locks.discard(lock)  # the holder of a group must write to its oldest item
                    held.append(_Held(lock, path, dues.pop(item.id, None)))
        released += await _open_all(handle, held, refused)
    # The other locks have no item here, so no message has been held since before this began. A message may come back,
    # such as a dead letter under its id, and be locked again: that lock must not be removed unnoticed.
    await clear_gradually(*locks.parts, dues)
    if refused:
        raise partly_denied(handle.name, "released", list(refused), released, next(iter(refused.values())))
    return released


async def _raise_younger(handle: QueueHandle[Runtime], groups: set[str]) -> dict[str, AccessDeniedError]:
    """Raise the version of each message that the holder of one of these groups may assert, except the oldest one.

    A holder asserts the oldest message that it could see. The messages of a batch that was pending then may be older.
    Return the groups with a message that this user may not change: their holders would not notice the release.
    """
    oldest, younger = set[tuple[str, str | None]](), dict[str, str]()
    seen: set[str] = set()
    async for page in walk(handle, await lanes(handle) if groups else []):
        for item, path, *_ in page:
            for lock in groups.intersection(lock_ids(item)):
                if lock in seen and (lock, item.batch) not in oldest:
                    younger[path] = lock
                seen.add(lock)
                oldest.add((lock, item.batch))
    refused: dict[str, AccessDeniedError] = {}
    raised: dict[str, Change] = {}
    for path, nodes in zip(younger, await read_sets(handle, [(path,) for path in younger]), strict=True):
        if isinstance(nodes, AccessDeniedError):
            refused[younger[path]] = nodes
        elif nodes[0] is not None:
            raised[path] = Change(handle.state, [SetData(path, nodes[0].data, nodes[0].stat.version)])
    for path, part in zip(raised, await settle_allowed(handle.runtime, raised.values()), strict=True):
        if isinstance(part.error, AccessDeniedError):
            refused[younger[path]] = part.error
    return refused


class _Held(NamedTuple):
    """A lock to force open, and the path of the item that its holder must write to."""

    lock: str
    path: str
    due: str | None
    """The name of the due node, if the lock is timed. A group's is named after its oldest item, which is retried."""


class _DueNodes:
    """The names of the due nodes by the ids of their items."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def take(self, names: list[str]) -> None:
        for name in names:
            if (parsed := parse_due(name)) is not None:
                self.names[parsed[1]] = name


async def _open_all(handle: QueueHandle[Runtime], held: Sequence[_Held], refused: dict[str, AccessDeniedError]) -> int:
    """Force some locks open, and return how many; ``refused`` receives those that this user may not open."""
    changes: dict[str, Change] = {}
    for hold, nodes in zip(held, await read_sets(handle, [(hold.path,) for hold in held]), strict=True):
        if isinstance(nodes, AccessDeniedError):
            refused[hold.lock] = nodes
        elif nodes[0] is not None:  # otherwise it has gone since it was listed
            changes[hold.lock] = _opening(handle, hold, nodes[0])
    released = 0
    for lock, part in zip(changes, await settle_allowed(handle.runtime, changes.values()), strict=True):
        if isinstance(part.error, AccessDeniedError):
            refused[lock] = part.error
        released += part.error is None
    return released


def _opening(handle: QueueHandle[Runtime], held: _Held, item: Node) -> Change:
    """Return the change that forces a lock open."""
    paths = handle.paths
    # Raises the item's version, which its holder's commit and rollback check.
    change: list[Operation] = [Delete(paths.lock(held.lock)), SetData(held.path, item.data, item.stat.version)]
    if held.due is not None:
        change.append(Delete(f"{paths.due}/{held.due}"))
    if handle.state.dialect is None:
        # Shows a holder that found no item under its lock that another client may have created the lock since.
        change.append(SetData(paths.locks, b""))
    return Change(handle.state, change)
