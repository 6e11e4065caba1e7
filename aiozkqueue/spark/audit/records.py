"""The tasks of an audit: read history records as rows, and remove them."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DateType, StringType, StructField, StructType

from aiozkqueue.layout import hour_of, parse_hour
from aiozkqueue.operations.listing import collect_children, list_children
from aiozkqueue.operations.stats import count
from aiozkqueue.queue.candidates.collectors import Matching
from aiozkqueue.runtime.acl_errors import access_denied
from aiozkqueue.session.internals import core_of
from aiozkqueue.spark.batching import BATCH, MOST_BYTES
from aiozkqueue.spark.columns import body_of, default_schema
from aiozkqueue.spark.connection import Link, opened
from aiozkqueue.spark.options import Content
from aiozkqueue.spark.reading import FolderShare, history_pages
from aiozkqueue.zookeeper import (
    Delete,
    MultiError,
    NoAuthError,
    NoNodeError,
    apply_until_answered,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

    from aiozkqueue.session.session import QueueSession
    from aiozkqueue.spark.options import Servers
    from aiozkqueue.zookeeper import Operation

#: Approximate number of records that a task reads.
SHARE: Final = 20_000
#: The number of records that one write removes.
TOGETHER: Final = 500

#: The columns of a record.
SCHEMA: Final[StructType] = StructType(
    [
        StructField("queue", StringType()),
        StructField("day", DateType()),
        *default_schema(Content.HISTORY).fields,
    ]
)


@dataclass(frozen=True, slots=True)
class Hour:
    """An hour of a queue's history, or a share of that hour as in a `FolderShare`."""

    queue: str
    name: str
    share: int = 0
    of: int = 1


async def tasks_of(session: QueueSession, queues: Iterable[str]) -> list[str]:
    """Divide the histories among tasks, and return the hours of each task as JSON. A task has hours of few queues."""
    tasks: list[list[Hour]] = []
    room = 0.0
    for queue in queues:
        handle = core_of(session).handle(queue)
        hours = sorted(await list_children(handle, handle.paths.history))
        for hour in (name for name in hours if parse_hour(name) is not None):
            size = await count(handle, handle.paths.record(hour))
            shares = -(-size // SHARE)
            for share in range(shares):
                if room < size / shares:
                    tasks.append([])
                    room = SHARE
                tasks[-1].append(Hour(queue, hour, share, shares))
                room -= size / shares
    return [json.dumps([astuple(hour) for hour in task]) for task in tasks]


@dataclass(frozen=True, slots=True)
class Reading:
    """Reads the hours of history that belong to the given task numbers."""

    servers: Servers
    tasks: Sequence[str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the rows of the given hours. Raises: AccessDeniedError, ConnectionLostError."""
        schema = to_arrow_schema(SCHEMA, timezone="UTC")
        with opened(self.servers) as (portal, session):
            for hour in self._hours(batches):
                link = Link.of(portal, session, self.servers.of(hour.queue))
                waiting: list[dict[str, object]] = []
                size = 0
                for page in link.each_of(_pages(link, hour)):
                    waiting += [{"queue": hour.queue, "day": _day(record), **record} for record in page]
                    size += sum(len(body_of(record) or b"") for record in page)
                    if len(waiting) >= BATCH or size >= MOST_BYTES:
                        yield pa.RecordBatch.from_pylist(waiting, schema=schema)
                        waiting, size = [], 0
                if waiting:
                    yield pa.RecordBatch.from_pylist(waiting, schema=schema)

    def _hours(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Hour]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from (Hour(*fields) for fields in json.loads(self.tasks[int(number)]))


async def _pages(link: Link, hour: Hour) -> AsyncIterator[list[dict[str, object]]]:
    share = FolderShare(link.state.paths.record(hour.name), hour.share, hour.of, ids=None)
    async for page in history_pages(link, share):
        yield page


def _day(values: dict[str, object]) -> object:
    ended = values["ended_at"]
    assert isinstance(ended, int)  # noqa: S101 - `reading` returns microseconds since 1970
    return datetime.fromtimestamp(ended // 1_000_000, UTC).date()


@dataclass(frozen=True, slots=True)
class Removing:
    """Removes records that are durably in the files."""

    servers: Servers

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Remove the given records if they still exist; return the number of records given.

        Raises: AccessDeniedError, ConnectionLostError.
        """
        with opened(self.servers) as (portal, session):
            for batch in batches:
                names: dict[tuple[str, str], list[str]] = defaultdict(list)
                for row in batch.to_pylist():
                    names[row["queue"], hour_of(row["ended"])].append(f"{row['ended']:013d}-{row['id']}")
                for (queue, hour), records in names.items():
                    link = Link.of(portal, session, self.servers.of(queue))
                    link.call(_remove, link, hour, records)
                yield pa.RecordBatch.from_pydict({"records": [batch.num_rows]})


async def _remove(link: Link, hour: str, names: Sequence[str]) -> None:
    """Remove records of an hour. A name is never used again, so it cannot belong to another record."""
    state = link.state
    path = state.paths.record(hour)
    remaining = names
    while True:
        listing = await collect_children(link.handle, path, partial(Matching, set(remaining).__contains__))
        remaining = listing.names
        if not remaining:
            return
        for start in range(0, len(remaining), TOGETHER):
            page = remaining[start : start + TOGETHER]
            await _apply(link, [Delete(f"{path}/{name}") for name in page])


async def _apply(link: Link, operations: Sequence[Operation]) -> None:
    """Apply a change. If clean-up was faster or the reply was lost, another pass checks it."""
    try:
        await apply_until_answered(link.runtime.zookeeper, operations)
    except MultiError as refusal:
        if isinstance(refusal.error, NoAuthError):
            raise access_denied(link.options.queue, refusal.error) from refusal
        if not isinstance(refusal.error, NoNodeError):
            raise refusal.error from refusal
