"""A queue as a stream: micro-batches by the ledger, each the same whenever it is asked for, removed when it is done.

Spark makes a reader in two processes: one that stays with the driver and is asked for offsets, and one that plans and
only sends it, in a pickle, to the tasks. So nothing happens until an offset is asked for. A batch is done when Spark
says so (`commit`), which it does only once the next one is there, or when it asks what comes after it: then it is in
the commit log. Both acknowledge.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from aiozkqueue.errors import ClaimLostError, InvalidOptionError
from aiozkqueue.queue.claims.found import find_pages, item_pages
from aiozkqueue.queue.claims.pages import mark, read_page, unmark
from aiozkqueue.queue.ledger import Ledger
from aiozkqueue.zookeeper import below

from .columns import Layout
from .connection import linked
from .options import Content
from .reading import BATCH, item_values, next_page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from .connection import Link
    from .options import Options

#: The most messages of a task, unless more tasks are asked for.
SHARE: Final = 25_000
_START: Final = {"seq": -1}


@dataclass
class LedgerShare(InputPartition):
    """Parts of pages: where the page lies, and which of its items."""

    parts: list[tuple[str, int, int]]


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Makes, divides, reads and acknowledges batches."""

    def __init__(self, schema: StructType, options: Options) -> None:
        if options.content is not Content.ITEMS:
            msg = f"content={options.content.value!r}: only the messages of a queue are a stream"
            raise InvalidOptionError(msg)
        Layout(schema, options)  # refuses columns before anything runs
        self._schema = schema
        self._options = options
        self._opened: tuple[ExitStack, Link, Ledger] | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return what comes before every batch."""
        return dict(_START)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return how much a batch may take."""
        most = self._options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Take what is there now, and nothing that comes later."""
        link, ledger = self._ledger()
        link.call(ledger.freeze)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Acknowledge up to ``start``, and return the batch that follows, or ``start`` when there is none.

        Raises: ClaimLostError: another query has taken the ledger over; AccessDeniedError, ConnectionLostError.
        """
        link, ledger = self._ledger()
        link.call(ledger.acknowledge, start["seq"])
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return {"seq": link.call(ledger.next_batch, start["seq"], most)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[LedgerShare]:
        """Divide a batch. Raises: ClaimLostError: it is not there any more, or not ours."""
        if start["seq"] >= end["seq"]:
            return []
        link, ledger = self._ledger()
        return link.call(self._divide, ledger, start["seq"], end["seq"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a share, in a task. Raises: ClaimLostError: a message is not there; PayloadError, as the mode says."""
        assert isinstance(partition, LedgerShare)  # noqa: S101 - made by `partitions`
        layout = Layout(self._schema, self._options)
        with linked(self._options) as link:
            pages = _read(link, partition, layout)
            waiting: list[list[object]] = []
            while (page := link.call(next_page, pages)) is not None:
                waiting += page
                if len(waiting) >= BATCH:
                    yield layout.batch(waiting)
                    waiting = []
            if waiting:
                yield layout.batch(waiting)

    def finish(self) -> int:
        """Finish an acknowledgement that was cut off; return how many messages its batch had. Raises: as `commit`."""
        link, ledger = self._ledger()
        return link.call(ledger.finish)

    def commit(self, end: dict[str, int]) -> None:
        """Acknowledge up to a batch. Raises: as `latestOffset`."""
        link, ledger = self._ledger()
        link.call(ledger.acknowledge, end["seq"])

    def stop(self) -> None:
        """Close the connection."""
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None

    def __getstate__(self) -> dict[str, object]:
        """Leave the connection behind."""
        return {**self.__dict__, "_opened": None}

    def _ledger(self) -> tuple[Link, Ledger]:
        if self._opened is None:
            stack = ExitStack()
            link = stack.enter_context(linked(self._options))
            ledger = link.call(_ledger_of, link)
            self._opened = stack, link, ledger
        return self._opened[1:]

    async def _divide(self, ledger: Ledger, start: int, end: int) -> list[LedgerShare]:
        await ledger.open()
        numbers = [number for number in await ledger.batches() if start < number < end]
        pages = [page for number in (*numbers, end) for page in await ledger.pages(number)]
        total = sum(page.items for page in pages)
        shares = max(self._options.min_partitions, -(-total // SHARE))
        size = max(1, -(-total // shares))
        divided: list[LedgerShare] = [LedgerShare([])]
        room = size
        for page in pages:
            begin = 0
            while begin < page.items:
                if not room:
                    divided.append(LedgerShare([]))
                    room = size
                stop = min(page.items, begin + room)
                divided[-1].parts.append((page.path, begin, stop))
                room -= stop - begin
                begin = stop
        return divided


async def _ledger_of(link: Link) -> Ledger:
    return Ledger(link.engine, link.store, link.options.group)


async def _read(link: Link, share: LedgerShare, layout: Layout) -> AsyncIterator[list[list[object]]]:
    """Read what a ledger holds. A server that lags must not make a message look as if it were done: hence the sync."""
    zookeeper, store = link.engine.zookeeper, link.store
    read = find_pages if layout.reads_locks else item_pages
    await zookeeper.sync(store.paths.base)
    for path, begin, stop in share.parts:
        places = [one.place for one in (await read_page(zookeeper.read, path))[begin:stop]]
        marked = set(await below(zookeeper, path))
        count = 0
        async for found in read(link.engine, store, places):
            count += len(found)
            now = link.engine.server_clock.now()
            decoded = layout.decode([item_values(one, now, layout) for one in found])
            for message_id, reason in decoded.undecodable.items():
                await mark(zookeeper, path, message_id, reason)
            for one in found:  # what an earlier try, of another schema, could not decode
                if one.id in marked and one.id not in decoded.undecodable:
                    await unmark(zookeeper, path, one.id)
            yield decoded.rows
        if count < len(places):
            msg = (
                f"queue {store.name!r}: {len(places) - count} messages of a batch are not there: they were forced open "
                "and taken by others, or another query of this group has acknowledged them"
            )
            raise ClaimLostError(msg)
