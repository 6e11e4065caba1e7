"""Deletes queues. For the protocol, and why it holds, see ``docs/design/47-deletion.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.errors import NotCommittedError, NotFoundError, QueueInUseError
from aiozkqueue.layout import DELETED, is_deleted, name_at
from aiozkqueue.layout.paths import notifications_base
from aiozkqueue.runtime.acl_errors import access_denied, translate_denials
from aiozkqueue.zookeeper import (
    Delete,
    MultiError,
    NoAuthError,
    NoNodeError,
    SetData,
    apply_until_answered,
    below,
)

from .consumers import consumers
from .deleted import forget_rate, remove_below
from .listing import list_children
from .similar import absence
from .stats import count, size

if TYPE_CHECKING:
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.zookeeper import Operation

#: Maximum number of tries while other clients keep changing the queue.
TRIES: Final = 20
#: Consumers that an error names.
_NAMED: Final = 3


async def delete(handle: QueueHandle[Runtime], *, force: bool) -> None:
    """Delete a queue; unless ``force``, only one that holds no messages and that no other session uses.

    One multi marks the queue as deleted: from then on it does not exist for any client. Then its znodes are removed.

    Raises: NotFoundError, QueueInUseError, AccessDeniedError, NotCommittedError.
    """
    with translate_denials(handle.name):
        version = await _mark(handle, force=force)
        handle.state.invalidate()
        await remove_below(handle.zookeeper, handle.paths.base, version)
        marked = await handle.zookeeper.exists(handle.paths.base)
        if marked is not None and marked.version == version:
            await forget_rate(handle.runtime, handle.name, marked.mtime)


async def _mark(handle: QueueHandle[Runtime], *, force: bool) -> int:
    """Mark the queue as deleted; return the version of its znode then."""
    zookeeper, paths = handle.zookeeper, handle.paths
    sent = False
    for _ in range(TRIES):
        try:
            await zookeeper.sync(paths.base)
            data, stat = await zookeeper.read(paths.base)
        except NoNodeError:
            raise await _absent(handle) from None
        if is_deleted(data):
            if sent or stat.num_children:  # by an earlier copy of the request, or by a call that did not end
                return stat.version
            raise await _absent(handle)
        if not force and (uses := await _uses(handle)):
            raise _in_use(handle, uses)
        mark: list[Operation] = [SetData(paths.base, DELETED, stat.version)]
        if not force:
            mark += await _assert_unused(handle)
        registration = f"{notifications_base(handle.runtime.root)}/{handle.name}"
        if await zookeeper.exists(registration) is not None:
            mark.append(Delete(registration))
        sent = True
        try:
            await apply_until_answered(zookeeper, mark)
        except MultiError as refusal:
            if isinstance(refusal.error, NoAuthError):
                raise access_denied(handle.name, refusal.error) from refusal
            continue  # another client has used or changed it in the meantime: read it again
        return stat.version + 1
    msg = f"queue {handle.name!r}: other clients kept changing it; nothing was deleted; delete it again"
    raise NotCommittedError(msg)


async def _absent(handle: QueueHandle[Runtime]) -> NotFoundError:
    return NotFoundError(await absence(handle.runtime, handle.name))


async def _assert_unused(handle: QueueHandle[Runtime]) -> list[Operation]:
    """Return removals that the server refuses if there is a message, a dead letter, a consumer or a stream.

    It refuses to remove a znode with children.
    """
    paths, zookeeper = handle.paths, handle.zookeeper
    own = [name for name in await list_children(handle, paths.consumers) if _is_own(handle, name)]
    lanes = [f"{folder}/{name}" for folder in (paths.lanes, paths.later) for name in await below(zookeeper, folder)]
    present = set(await zookeeper.children(paths.base))
    folders = (paths.items, paths.lanes, paths.later, paths.dlq, paths.consumers, paths.ledgers)
    paths_to_delete = [*map(paths.consumer, own), *lanes, *(path for path in folders if name_at(path) in present)]
    return [Delete(path) for path in paths_to_delete]


def _is_own(handle: QueueHandle[Runtime], entry: str) -> bool:
    """Whether an entry of the registry is this session's."""
    return entry.startswith(f"{handle.runtime.ids.client}-")


class _Use(NamedTuple):
    """Something that a deletion would destroy or disturb."""

    number: int
    of: str
    more: str = ""

    def __str__(self) -> str:
        return f"{self.number} {self.of}{'' if self.number == 1 else 's'}{self.more}"


async def _uses(handle: QueueHandle[Runtime]) -> list[_Use]:
    """Count the data that must not exist if a queue is deleted without force."""
    paths = handle.paths
    other_consumers = [consumer for consumer in await consumers(handle) if not _is_own(handle, f"{consumer.client}-")]
    where = ", ".join(f"{consumer.host}, process {consumer.pid}" for consumer in other_consumers[:_NAMED])
    foreign = sorted(set(await list_children(handle, paths.base)) - paths.parts)
    uses = [
        _Use(await size(handle), "message"),
        _Use(await count(handle, paths.dlq), "dead letter"),
        _Use(len(other_consumers), "consumer", f" ({where})"),
        _Use(len(await list_children(handle, paths.ledgers)), "Spark stream"),
        _Use(len(foreign), "znode", f" of another program or version ({', '.join(foreign[:_NAMED])})"),
    ]
    return [use for use in uses if use.number]


def _in_use(handle: QueueHandle[Runtime], uses: list[_Use]) -> QueueInUseError:
    content = " and ".join(filter(None, [", ".join(map(str, uses[:-1])), str(uses[-1])]))
    return QueueInUseError(
        f"queue {handle.name!r} has {content}; nothing was deleted. Stop its consumers and empty it, or delete it with "
        "force=True",
        content,
    )
