"""Reads a history: its records in order, their number, or the last record of a message."""

from __future__ import annotations

from asyncio import gather
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.layout import HistoryRecord, MalformedError, hour_of, parse_record
from aiozkqueue.moments import milliseconds_at
from aiozkqueue.queue.candidates.collectors import Earliest, Matching
from aiozkqueue.queue.commit.unclaimed import read_all
from aiozkqueue.runtime.acl_errors import translate_denials
from aiozkqueue.zookeeper import PAGE

from .listing import collect_children, list_children

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.zookeeper import Node

#: Maps each ASCII character to one whose order among these characters is the reverse.
_COMPLEMENT: Final = {code: 126 - code for code in range(127)}


async def read_history(
    handle: QueueHandle[Runtime],
    *,
    since: datetime | None,
    until: datetime | None,
    limit: int | None,
    newest_first: bool = False,
) -> AsyncGenerator[HistoryRecord, None]:
    """Yield the records in the order in which the messages ended, or in the reverse order."""
    first = 0 if since is None else milliseconds(since, "since")
    last = None if until is None else milliseconds(until, "until")
    yielded = 0
    if await handle.state.is_marked():
        return
    hours = await _hours_between(handle, first, last)
    passes = partial(_ended_between, first=first, last=last)
    order = _reversed if newest_first else str
    for hour in reversed(hours) if newest_first else hours:
        listed = await collect_children(handle, handle.paths.record(hour), partial(Earliest, None, passes, order))
        names = listed.in_order()
        while page := list(islice(names, PAGE)):
            nodes = await read_all(handle, [handle.paths.record(f"{hour}/{name}") for name in page])
            for record in map(record_of, page, nodes):
                if record is None:
                    continue
                if limit is not None and yielded >= limit:
                    return
                yielded += 1
                yield record


async def count_history(handle: QueueHandle[Runtime], *, since: datetime | None, until: datetime | None) -> int:
    """Count the records of the hours that a period touches, without listing them. Raises: AccessDeniedError."""
    first = 0 if since is None else milliseconds(since, "since")
    last = None if until is None else milliseconds(until, "until")
    hours = await _hours_between(handle, first, last)
    number = 0
    for start in range(0, len(hours), PAGE):
        with translate_denials(handle.name):
            stats = await gather(
                *(handle.zookeeper.exists(handle.paths.record(hour)) for hour in hours[start : start + PAGE])
            )
        number += sum(stat.num_children for stat in stats if stat is not None)
    return number


async def _hours_between(handle: QueueHandle[Runtime], first: int, last: int | None) -> list[str]:
    hours = sorted(await list_children(handle, handle.paths.history))
    return [
        hour
        for hour in hours
        if not hour.startswith(".") and hour >= hour_of(first) and (last is None or hour <= hour_of(last))
    ]


def _reversed(name: str) -> str:
    """Return a sort key by which names of one length have the reverse order."""
    return name.translate(_COMPLEMENT)


def _ended_between(name: str, *, first: int, last: int | None) -> bool:
    moment = parse_record(name)
    return moment is not None and first <= moment[0] and (last is None or moment[0] < last)


async def find_record(handle: QueueHandle[Runtime], message_id: str) -> HistoryRecord | None:
    """Find the last record of a message. Lists the history, the latest hour first."""
    for hour in sorted(await list_children(handle, handle.paths.history), reverse=True):
        if found := await _records_in(handle, hour, message_id):
            return found[-1]
    return None


async def records_of(handle: QueueHandle[Runtime], message_id: str) -> list[HistoryRecord]:
    """Find all records of a message, in order: it ends again after each redrive. Lists the history."""
    hours = sorted(await list_children(handle, handle.paths.history))
    return [record for hour in hours for record in await _records_in(handle, hour, message_id)]


async def _records_in(handle: QueueHandle[Runtime], hour: str, message_id: str) -> list[HistoryRecord]:
    """Read the records of a message in one hour, in order."""

    def may_be(name: str) -> bool:
        return message_id in name

    listed = await collect_children(handle, handle.paths.record(hour), partial(Matching, may_be))
    names = sorted(name for name in listed.names if (parsed := parse_record(name)) and parsed[1] == message_id)
    nodes = await read_all(handle, [handle.paths.record(f"{hour}/{name}") for name in names])
    return [record for record in map(record_of, names, nodes) if record is not None]


def record_of(name: str, node: Node | None) -> HistoryRecord | None:
    """Read a record; None when it is gone, or does not decode."""
    try:
        return None if node is None else HistoryRecord.decode(name, node.data)
    except MalformedError:
        return None


def milliseconds(moment: object, option: str) -> int:
    """Return a moment in milliseconds since 1970. Raises: InvalidOptionError."""
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        msg = f"{option}={moment!r}: give an aware datetime, such as datetime.now(UTC)"
        raise InvalidOptionError(msg)
    return max(0, milliseconds_at(moment))
