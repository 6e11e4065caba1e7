"""One message: the options of its put, its payload, and its events."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.layout import Header
from aiozkqueue.operations.bundles import find_bundled
from aiozkqueue.operations.history import records_of
from aiozkqueue.operations.listing import first_items
from aiozkqueue.operations.message_state import Status
from aiozkqueue.operations.peek import bundled_content
from aiozkqueue.operations.stats import configuration, content, lanes
from aiozkqueue.operations.story import events_of
from aiozkqueue.queue.commit.unclaimed import read_all
from aiozkqueue.session.internals import handle_of

if TYPE_CHECKING:
    from aiozkqueue.layout import HistoryRecord
    from aiozkqueue.operations.message_state import MessageState
    from aiozkqueue.operations.story import Event
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.session.core import SessionCore
    from aiozkqueue.session.queue import Queue

#: The states in which a message can be taken or will be.
ALIVE = frozenset({Status.WAITING, Status.DELAYED, Status.IN_FLIGHT})


class Stored(NamedTuple):
    """The stored data of a message."""

    header: Header
    body: bytes | None
    """None: the payload was not kept."""


class Details(NamedTuple):
    """All that is known of a message."""

    state: MessageState
    stored: Stored | None
    """None: no data of it is stored."""
    events: list[Event]

    @property
    def trace(self) -> str | None:
        """The id of the trace that it was put in."""
        parts = "" if self.stored is None else self.stored.header.headers.get("traceparent", "")
        return parts.split("-")[1] if parts.count("-") >= 3 else None  # noqa: PLR2004 - version, trace, span, flags

    @property
    def is_alive(self) -> bool:
        """Whether it can be taken, now or later."""
        return self.state.status in ALIVE

    @property
    def is_dead(self) -> bool:
        """Whether it is a dead letter."""
        return self.state.status is Status.DEAD


async def details(queue: Queue[bytes], message_id: str) -> Details:
    """Read all that is known of a message. Raises: AccessDeniedError, PayloadError, ConnectionLostError."""
    state = await queue.state(message_id)
    handle = handle_of(queue)
    records = [] if state.status is Status.UNKNOWN else await records_of(handle, message_id)
    return Details(state, await _stored(handle, message_id, records), events_of(state, records))


async def _stored(handle: QueueHandle[SessionCore], message_id: str, records: list[HistoryRecord]) -> Stored | None:
    """Read a message from wherever it is stored: a lane, a bundle, the dead letters, or the history."""

    def passes(name: str) -> bool:
        return message_id in name and (item := handle.state.parse_item(name)) is not None and item.id == message_id

    folders = [*await lanes(handle), handle.paths.dlq]
    for entry in await first_items(handle, folders, 1, passes):
        (node,) = await read_all(handle, [entry.path])
        if node is not None:
            read = content(handle.state, entry.item, node, 0)
            return Stored(read.header, read.body)
    config = await configuration(handle)
    if config is not None and config.bundled and (found := await find_bundled(handle, folders, message_id)):
        read = bundled_content(handle, found)
        return Stored(read.header, read.body)
    if not records:
        return None
    last = records[-1]
    return Stored(Header(headers=last.headers, key=last.key, group=last.group), last.payload)
