"""The dead letters of a queue, the newest first, by reason, or found by a search."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.layout import ItemRef
from aiozkqueue.operations.listing import collect_children
from aiozkqueue.operations.stats import content
from aiozkqueue.queue.candidates.collectors import Earliest, sequence_of
from aiozkqueue.queue.commit.unclaimed import item_pages
from aiozkqueue.session.internals import handle_of

if TYPE_CHECKING:
    from aiozkqueue.layout import ItemName
    from aiozkqueue.queue.message import Content
    from aiozkqueue.session.queue import Queue

#: The number of dead letters, the newest by their put, that one search checks.
EXAMINED: Final = 5_000
#: The total size of dead letters after which a search stops, bytes.
EXAMINED_BYTES: Final = 64 * 1024 * 1024
#: The size from which a dead letter is searched in a separate step of the event loop, bytes.
LARGE: Final = 64 * 1024
#: The number of dead letters that a page shows.
SHOWN: Final = 50
#: The maximum length of a reason on a page.
REASON: Final = 300
#: The maximum number of reasons that a page lists.
MOST_REASONS: Final = 20
_NEWEST: Final = str.maketrans("0123456789", "9876543210")
#: The parts of a reason that differ from message to message.
_VARIABLE: Final = re.compile(r"'[^']*'|\"[^\"]*\"|[\w-]*\d\w*(?:[.,:-]\w+)*")


class DeadLetterRow(NamedTuple):
    """A dead letter without its payload."""

    id: str
    died: float
    """Seconds since 1970."""
    attempts: int
    reason: str
    kind: str
    """The reason without the parts that differ from message to message."""


class LetterFilter(NamedTuple):
    """Selects dead letters."""

    text: str = ""
    """A part of the id, the reason or the payload; empty: all."""
    kind: str = ""
    """The kind of the reason; empty: any."""


class Reason(NamedTuple):
    """The dead letters that have one kind of reason."""

    kind: str
    number: int
    last: float
    """When the newest of them died, seconds since 1970."""


@dataclass(slots=True)
class FoundLetters:
    """The result of a search."""

    rows: list[DeadLetterRow] = field(default_factory=list[DeadLetterRow])
    """The rows found, the newest first."""
    reasons: list[Reason] = field(default_factory=list[Reason])
    """The most frequent reasons of those that contain the text."""
    examined: int = 0
    more: bool = False
    """Whether some dead letters were not searched."""

    @property
    def ids(self) -> list[str]:
        """The ids of all dead letters found."""
        return [row.id for row in self.rows]


async def search(queue: Queue[bytes], sought: LetterFilter, *, payloads: bool) -> FoundLetters:
    """Find dead letters by a text in their id, reason or (with ``payloads``) payload, and by the kind of reason."""
    handle = handle_of(queue)
    newest = await collect_children(handle, handle.paths.dlq, partial(Earliest, EXAMINED + 1, None, _newest_first))
    items: dict[str, ItemName] = {}
    lane = handle.paths.place_of(handle.paths.dlq)
    for name in newest.in_order():
        if (item := handle.state.parse_item(name)) is not None:
            items[ItemRef(lane, name).path] = item
    found = FoundLetters(more=len(items) > EXAMINED)
    size = 0
    async for page in item_pages(handle, list(items)[:EXAMINED]):
        for letter in page:
            size += len(letter.item.data)
            found.examined += 1
            read = content(handle.state, items[letter.place], letter.item, 0)
            if _contains(read, sought.text, payloads=payloads):
                found.rows.append(_row(read))
            if len(letter.item.data) > LARGE:
                await asyncio.sleep(0)  # the search of a large letter blocks the event loop for some milliseconds
        if size > EXAMINED_BYTES:
            found.more = found.more or found.examined < len(items)
            break
    found.reasons = _reasons(found.rows)
    found.rows = [row for row in found.rows if sought.kind in ("", row.kind)]
    found.rows.sort(key=lambda row: row.died, reverse=True)
    return found


def kind_of(reason: str) -> str:
    """Return a reason without the parts that differ from message to message."""
    return _VARIABLE.sub("\N{HORIZONTAL ELLIPSIS}", reason[:REASON])


def _newest_first(name: str) -> str:
    sequence: str = sequence_of(name)
    return sequence.translate(_NEWEST)


def _contains(read: Content, text: str, *, payloads: bool) -> bool:
    if not text:
        return True
    wanted = text.casefold()
    if wanted in read.id.casefold() or (read.header.dead is not None and wanted in read.header.dead.reason.casefold()):
        return True
    return payloads and wanted in read.body.decode("utf-8", "replace").casefold()


def _row(read: Content) -> DeadLetterRow:
    dead = read.header.dead
    reason = "" if dead is None else dead.reason[:REASON]
    return DeadLetterRow(read.id, read.created / 1000, 0 if dead is None else dead.attempts, reason, kind_of(reason))


def _reasons(rows: list[DeadLetterRow]) -> list[Reason]:
    counts = Counter(row.kind for row in rows)
    last: dict[str, float] = {}
    for row in rows:
        last[row.kind] = max(row.died, last.get(row.kind, 0.0))
    return [Reason(kind, count, last[kind]) for kind, count in counts.most_common(MOST_REASONS)]
