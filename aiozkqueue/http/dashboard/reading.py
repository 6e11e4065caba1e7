"""What the pages show that the session's API does not give as such: dead letters by search, a payload by its id."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.queue.claims.found import read_all
from aiozkqueue.queue.operators.admin import content, lanes
from aiozkqueue.queue.operators.listing import list_items
from aiozkqueue.queue.operators.records import find_record
from aiozkqueue.queue.operators.states import Status
from aiozkqueue.zookeeper import PAGE

if TYPE_CHECKING:
    from datetime import datetime

    from aiozkqueue.queue.operators.states import MessageState
    from aiozkqueue.queue.queue import Queue

#: Dead letters that one search looks at, the oldest, and that one answer of a form changes.
LOOKED: Final = 5_000
#: Those of them that a page shows.
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
    """What a search has found."""

    rows: list[DeadLetterRow] = field(default_factory=list[DeadLetterRow])
    """The first of them."""
    ids: list[str] = field(default_factory=list[str])
    """All of them."""
    looked: int = 0
    more: bool = False
    """Whether there are some that were not looked at."""


async def search(queue: Queue[bytes], text: str, *, payloads: bool) -> FoundLetters:
    """Find the dead letters whose id, reason or (if it may) payload holds a text; all, when that is empty."""
    engine, store = queue.engine, queue.store
    placed = await list_items(engine, store, [store.paths.dlq])
    found = FoundLetters(looked=min(len(placed), LOOKED), more=len(placed) > LOOKED)
    placed = placed[:LOOKED]
    for start in range(0, len(placed), PAGE):
        page = placed[start : start + PAGE]
        if not text and len(found.rows) >= SHOWN:  # their ids are all that is needed
            found.ids += [one.item.id for one in page]
            continue
        nodes = await read_all(engine, store, [one.path for one in page])
        for one, node in zip(page, nodes, strict=True):
            if node is None:
                continue
            read = content(store, one.item, node, 0)
            dead = read.header.dead
            reason = "" if dead is None else dead.reason
            searched = (one.item.id, reason, read.body.decode("utf-8", "replace") if payloads else "")
            if not any(text.casefold() in part.casefold() for part in searched):
                continue
            found.ids.append(one.item.id)
            if len(found.rows) < SHOWN:
                attempts = 0 if dead is None else dead.attempts
                found.rows.append(DeadLetterRow(one.item.id, node.stat.ctime / 1000, attempts, reason))
    return found


async def payload(queue: Queue[bytes], message_id: str) -> str | None:
    """Read a message's payload, wherever it is; None when it is nowhere."""
    engine, store = queue.engine, queue.store
    for one in await list_items(engine, store, [*await lanes(engine, store), store.paths.dlq]):
        if one.item.id == message_id:
            (node,) = await read_all(engine, store, [one.path])
            if node is not None:
                return content(store, one.item, node, 0).body.decode("utf-8", "replace")
    record = await find_record(engine, store, message_id)
    return None if record is None or record.payload is None else record.payload.decode("utf-8", "replace")


def events(state: MessageState) -> list[tuple[datetime, str]]:
    """Tell what has happened to a message, in its order."""
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
