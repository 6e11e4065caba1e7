"""Reads a history: its records in order, or the last record of a message."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.layout import HistoryRecord, MalformedError, hour_of, parse_record
from aiozkqueue.moments import milliseconds_at
from aiozkqueue.queue.candidates.collectors import Earliest, Matching
from aiozkqueue.queue.commit.unclaimed import read_all
from aiozkqueue.zookeeper import PAGE

from .listing import collect_children, list_children

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.zookeeper import Node


async def read_history(
    handle: QueueHandle[Runtime], *, since: datetime | None, until: datetime | None, limit: int | None
) -> AsyncIterator[HistoryRecord]:
    """Yield the records in the order in which the messages ended."""
    first = 0 if since is None else milliseconds(since, "since")
    last = None if until is None else milliseconds(until, "until")
    given = 0
    for hour in sorted(await list_children(handle, handle.paths.history)):
        if hour.startswith(".") or hour < hour_of(first) or (last is not None and hour > hour_of(last)):
            continue
        passes = partial(_ended_between, first=first, last=last)
        listed = await collect_children(handle, handle.paths.record(hour), partial(Earliest, None, passes, str))
        names = listed.in_order()
        while page := list(islice(names, PAGE)):
            nodes = await read_all(handle, [handle.paths.record(f"{hour}/{name}") for name in page])
            for record in map(record_of, page, nodes):
                if record is None:
                    continue
                if limit is not None and given >= limit:
                    return
                given += 1
                yield record


def _ended_between(name: str, *, first: int, last: int | None) -> bool:
    moment = parse_record(name)
    return moment is not None and first <= moment[0] and (last is None or moment[0] < last)


async def find_record(handle: QueueHandle[Runtime], message_id: str) -> HistoryRecord | None:
    """Find the last record of a message. Lists the history, the latest hour first."""

    def may_be(name: str) -> bool:
        return message_id in name

    for hour in sorted(await list_children(handle, handle.paths.history), reverse=True):
        listed = await collect_children(handle, handle.paths.record(hour), partial(Matching, may_be))
        matching = [name for name in listed.names if (parsed := parse_record(name)) and parsed[1] == message_id]
        for name in sorted(matching, reverse=True):
            (node,) = await read_all(handle, [handle.paths.record(f"{hour}/{name}")])
            record = record_of(name, node)
            if record is not None:
                return record
    return None


def record_of(name: str, node: Node | None) -> HistoryRecord | None:
    """Read a record; None when it is gone, or does not decode."""
    try:
        return None if node is None else HistoryRecord.decode(name, node.data)
    except MalformedError:
        return None


def milliseconds(moment: object, option: str) -> int:
    """Return a moment in milliseconds since 1970. Raises: InvalidOptionError."""
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        msg = f"{option}={moment!r}: give an aware datetime, such as datetime.now(UTC)"
        raise InvalidOptionError(msg)
    return max(0, milliseconds_at(moment))
