"""How long messages wait and are handled, from the records of the history."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from aiozkqueue.layout import hour_of
from aiozkqueue.moments import milliseconds_in
from aiozkqueue.operations.history import record_of
from aiozkqueue.operations.history_report import Times
from aiozkqueue.operations.listing import collect_children, list_children
from aiozkqueue.operations.shown_time import shown_time
from aiozkqueue.queue.candidates.collectors import Earliest
from aiozkqueue.queue.commit.unclaimed import read_all
from aiozkqueue.session.internals import handle_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.layout import HistoryRecord
    from aiozkqueue.operations.history_report import Percentiles
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.session.core import SessionCore
    from aiozkqueue.session.queue import Queue

#: The number of records, the newest, that are read.
MOST: Final = 1_000
_NEWEST: Final = str.maketrans("0123456789", "9876543210")
_MOMENT: Final = 13


class MessageTimes(NamedTuple):
    """The times of the last messages that were claimed and ended."""

    number: int
    wait: Percentiles | None
    """From the put to the claim that ended the message; None: no such message."""
    handling: Percentiles | None
    """From that claim to the end."""


async def read(queue: Queue[bytes], seconds: float) -> MessageTimes:
    """Read the times of up to `MOST` messages that ended in the last ``seconds``. Raises: AccessDeniedError."""
    handle = handle_of(queue)
    first = await shown_time(handle.runtime) - milliseconds_in(seconds)
    records = [
        record for record in await _newest(handle, first) if record.claimed is not None and record.ended >= first
    ]
    return times_of(records)


def times_of(records: Sequence[HistoryRecord]) -> MessageTimes:
    """Return the times of messages from their records. Pure."""
    wait, handling, number = Times(), Times(), 0
    for record in records:
        if record.claimed is not None:
            wait.add(record.claimed - record.put)
            handling.add(record.ended - record.claimed)
            number += 1
    return MessageTimes(number, wait.percentiles, handling.percentiles)


async def _newest(handle: QueueHandle[SessionCore], first: int) -> list[HistoryRecord]:
    found: list[HistoryRecord] = []
    hours = [name for name in await list_children(handle, handle.paths.history) if not name.startswith(".")]
    for hour in sorted(hours, reverse=True):
        if hour < hour_of(max(0, first)) or len(found) >= MOST:
            break
        kept = partial(Earliest, MOST - len(found), None, _newest_first)
        names = (await collect_children(handle, handle.paths.record(hour), kept)).names()
        nodes = await read_all(handle, [handle.paths.record(f"{hour}/{name}") for name in names])
        found += [record for record in map(record_of, names, nodes) if record is not None]
    return found


def _newest_first(name: str) -> str:
    return name[:_MOMENT].translate(_NEWEST)
