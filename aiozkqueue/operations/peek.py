"""Reads the first messages of a queue without taking them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import AccessDeniedError
from aiozkqueue.layout import EMPTY_HEADER, MalformedError, StoredConfig, decode
from aiozkqueue.queue.commit.unclaimed import lock_of, possible_locks, read_sets, record_of_attempts
from aiozkqueue.queue.message import Content
from aiozkqueue.runtime.acl_errors import name_some
from aiozkqueue.wording import counted

from .bundles import first_bundled
from .listing import first_readable
from .shown_time import shown_time
from .stats import configuration, content, due_of, lanes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Node

    from .bundles import Found
    from .listing import Placed

log: Final = logging.getLogger(__name__)

#: The error of a message whose attempts this user may not read.
ATTEMPTS_UNREADABLE: Final = "its lock or its record of attempts may not be read by this user"


async def peek(handle: QueueHandle[Runtime], limit: int) -> list[Content]:
    """Read the oldest items, claimed ones too, with the attempts made so far and when they are due.

    Messages that this user may not read are left out, with a warning in the log, and later ones are read instead.
    """
    folders = await lanes(handle)
    config = await configuration(handle) or StoredConfig()

    async def read(placed: Sequence[Placed]) -> list[list[Content] | AccessDeniedError | None]:
        return await _read(handle, placed, config)

    items, unreadable = await first_readable(handle, folders, limit, read)
    log_unreadable(handle.state, unreadable)
    contents = [message for item in items for message in item][:limit]
    if config.bundled:
        bundled = [bundled_content(handle, found) for found in await first_bundled(handle, folders, limit)]
        if bundled:
            return sorted([*contents, *bundled], key=_rank)[:limit]
    return contents


def bundled_content(handle: QueueHandle[Runtime], found: Found) -> Content:
    """Return the content of a message of a bundle."""
    created = found.state.bundle.ctime
    try:
        header, body = decode(found.message.data)
    except MalformedError:
        header, body = EMPTY_HEADER, found.message.data
    return Content(handle.name, found.message.id, body, header, found.attempts, created, found.error)


def _rank(content: Content) -> tuple[bool, int, int, str]:
    """Return the sort key of messages: those that can be taken, then the most urgent, then the oldest."""
    header = content.header
    put = header.put_at(content.created)
    return content.due is not None, header.priority, put, content.id


def log_unreadable(state: QueueState, message_ids: Sequence[str]) -> None:
    """Log the messages that were left out."""
    if message_ids:
        log.warning(
            "queue %s: leaving out %s that this user may not read: %s; allow this user to read, or remove the messages",
            state.name,
            counted(len(message_ids), "message"),
            name_some(message_ids),
            extra={"queue": state.name},
        )


async def _read(
    handle: QueueHandle[Runtime], placed: Sequence[Placed], config: StoredConfig
) -> list[list[Content] | AccessDeniedError | None]:
    """Read the messages of items with their attempts; None: the item is gone."""
    paths = handle.paths
    locks = [possible_locks(handle.state, entry.item.text, config) for entry in placed]
    sets = [
        (entry.path, paths.meta(entry.item.id), *map(paths.lock, possible))
        for entry, possible in zip(placed, locks, strict=True)
    ]
    results: list[list[Content] | AccessDeniedError | None] = []
    for entry, possible, nodes in zip(placed, locks, await read_sets(handle, sets), strict=True):
        if not isinstance(nodes, AccessDeniedError):
            results.append(await _contents_of(handle, entry, possible, nodes))
            continue
        [alone] = await read_sets(handle, [(entry.path,)])
        if isinstance(alone, AccessDeniedError):
            results.append(alone)
        else:
            read = await _contents_of(handle, entry, possible, [*alone, *[None] * (1 + len(possible))])
            results.append(read and [message._replace(error=ATTEMPTS_UNREADABLE) for message in read])
    return results


async def _contents_of(
    handle: QueueHandle[Runtime], placed: Placed, possible: Sequence[str], nodes: Sequence[Node | None]
) -> list[Content] | None:
    """Return the messages of an item as read: its znode, its record of attempts, and its possible locks."""
    node, meta, *locks = nodes
    if node is None:
        return None
    record = record_of_attempts(meta)
    first = content(handle.state, placed.item, node, 0 if record is None else record.attempts)
    due = due_of(placed.item, *lock_of(placed.item.text, list(zip(possible, locks, strict=True))))
    later = due is not None and due > await shown_time(handle.runtime)
    first = first._replace(error=None if record is None else record.error, due=due if later else None)
    return [first, *(first._replace(body=body) for body in _further(handle.state, placed, node))]


def _further(state: QueueState, placed: Placed, node: Node) -> list[bytes]:
    """Return the messages of an item after its first one, in a queue of Curator's."""
    if state.dialect is None or not state.dialect.is_item(placed.item.text):
        return []
    try:
        return state.dialect.messages(node.data)[1:]
    except MalformedError:
        return []
