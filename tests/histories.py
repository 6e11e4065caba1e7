"""Histories with known contents: records of messages that ended at chosen times."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import aiozkqueue as zq
from aiozkqueue.layout import End, HistoryRecord
from aiozkqueue.session.internals import core_of
from aiozkqueue.zookeeper import Create

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

START = datetime(2026, 3, 1, 23, 50, tzinfo=UTC)


def record(number: int, *, waited: int, handled: int, outcome: End = End.FINISHED, **more: Any) -> HistoryRecord:
    """Return the record of a message that was put a second after the previous one, and took this many milliseconds."""
    put = int(START.timestamp() * 1000) + 1000 * number
    claimed = None if outcome is End.EXPIRED else put + waited
    return HistoryRecord(
        id=f"m{number:06d}", ended=put + waited + handled, outcome=outcome, put=put, claimed=claimed, **more
    )


def store(servers: Mapping[str, str], records: Mapping[str, Sequence[HistoryRecord]]) -> None:
    """Store the records in the histories of these queues."""

    async def write() -> None:
        async with zq.connect(servers["hosts"], root=servers["root"]) as session:
            for name, kept in records.items():
                await session.queue(name).configure(zq.QueueConfig(history=zq.History()))
                paths, zookeeper = core_of(session).queue_state(name).paths, core_of(session).zookeeper
                for ended in kept:
                    await zookeeper.ensure(paths.record(ended.place).rpartition("/")[0])
                    await zookeeper.multi([Create(paths.record(ended.place), ended.encode())])

    asyncio.run(write())
