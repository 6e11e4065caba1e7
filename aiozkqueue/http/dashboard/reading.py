"""Reads that the session's API does not offer: dead letters by search, a payload by message id."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.queue.admin.bundles import find_bundled, payload_of
from aiozkqueue.queue.admin.history import find_record
from aiozkqueue.queue.admin.listing import first_items
from aiozkqueue.queue.admin.message_state import Status
from aiozkqueue.queue.admin.stats import configuration, content, lanes
from aiozkqueue.queue.commit.handle import QueueHandle
from aiozkqueue.queue.commit.unclaimed import item_pages, read_all
from aiozkqueue.queue.internals import core_of, state_of

if TYPE_CHECKING:
    from datetime import datetime

    from aiozkqueue.queue.admin.message_state import MessageState
    from aiozkqueue.queue.message import Content
    from aiozkqueue.queue.queue import Queue

#: The number of dead letters, the oldest, that one search checks or one form changes.
LOOKED: Final = 5_000
#: The total size of dead letters after which a search stops, bytes.
LOOKED_BYTES: Final = 64 * 1024 * 1024
#: The size from which a dead letter is searched in a separate step of the event loop, bytes.
LARGE: Final = 64 * 1024
#: The number of dead letters that a page shows.
SHOWN: Final = 200


class DeadLetterRow(NamedTuple):
    """A dead letter without its payload."""

    id: str
    died: float
    """Seconds since 1970."""
    attempts: int
    reason: str


@dataclass(slots=True)
class FoundLetters:
    """The result of a search."""

    rows: list[DeadLetterRow] = field(default_factory=list[DeadLetterRow])
    """The first rows found."""
    ids: list[str] = field(default_factory=list[str])
    """The ids of all letters found."""
    looked: int = 0
    more: bool = False
    """Whether some dead letters were not searched."""


async def search(queue: Queue[bytes], text: str, *, payloads: bool) -> FoundLetters:
    """Find the dead letters whose id, reason or (with ``payloads``) payload contains a text; all if it is empty."""
    runtime, state = core_of(queue), state_of(queue)
    placed = await first_items(QueueHandle(runtime, state), [state.paths.dlq], LOOKED + 1)
    found = FoundLetters(more=len(placed) > LOOKED)
    items = {state.paths.place_of(one.path): one.item for one in placed[:LOOKED]}
    size = 0
    async for page in item_pages(QueueHandle(runtime, state), list(items)):
        for one in page:
            size += len(one.item.data)
            found.looked += 1
            if (row := _row(content(state, items[one.place], one.item, 0), text, payloads=payloads)) is not None:
                found.ids.append(row.id)
                found.rows.append(row)
            if len(one.item.data) > LARGE:
                await asyncio.sleep(0)  # the search of a large letter blocks the event loop for some milliseconds
        if not text and len(found.rows) >= SHOWN:  # only the ids of the others are needed
            found.ids, found.looked = [item.id for item in items.values()], len(items)
            break
        if size > LOOKED_BYTES:
            found.more = found.more or found.looked < len(items)
            break
    del found.rows[SHOWN:]
    return found


def _row(read: Content, text: str, *, payloads: bool) -> DeadLetterRow | None:
    """Return the row of a dead letter; None if it does not contain the text."""
    dead = read.header.dead
    reason = "" if dead is None else dead.reason
    searched = (read.id, reason, read.body.decode("utf-8", "replace") if payloads and text else "")
    if not any(text.casefold() in part.casefold() for part in searched):
        return None
    return DeadLetterRow(read.id, read.created / 1000, 0 if dead is None else dead.attempts, reason)


async def payload(queue: Queue[bytes], message_id: str) -> str | None:
    """Read a message's payload from wherever it is stored; None if it does not exist."""
    runtime, state = core_of(queue), state_of(queue)

    def passes(name: str) -> bool:
        return message_id in name and (item := state.parse_item(name)) is not None and item.id == message_id

    folders = [*await lanes(QueueHandle(runtime, state)), state.paths.dlq]
    for one in await first_items(QueueHandle(runtime, state), folders, 1, passes):
        (node,) = await read_all(QueueHandle(runtime, state), [one.path])
        if node is not None:
            return content(state, one.item, node, 0).body.decode("utf-8", "replace")
    config = await configuration(QueueHandle(runtime, state))
    if (
        config is not None
        and config.bundled
        and (found := await find_bundled(QueueHandle(runtime, state), folders, message_id))
    ):
        return payload_of(found.message.data).decode("utf-8", "replace")
    record = await find_record(QueueHandle(runtime, state), message_id)
    return None if record is None or record.payload is None else record.payload.decode("utf-8", "replace")


def events(state: MessageState) -> list[tuple[datetime, str]]:
    """Return the events of a message in order."""
    told: list[tuple[datetime, str]] = []
    if state.put_at is not None:
        by = state.put_by
        told.append((state.put_at, "put" if by is None else f"put by {by.client} {_place(by.host, by.pid)}".strip()))
    if state.claimed_at is not None:
        by = state.claimed_by
        held = "held" if state.status is Status.CLAIMED else "was held"
        told.append(
            (state.claimed_at, held if by is None else f"{held} by {by.client} {_place(by.host, by.pid)}".strip())
        )
    if state.ended_at is not None:
        told.append((state.ended_at, state.status.value))
    return told


def _place(host: str, pid: int) -> str:
    return f"({host}, process {pid})" if host else ""
