"""A queue as a stream: repeatable micro-batches from the ledger, removed when they are done.

Spark creates a reader in two processes: one stays with the driver and returns offsets, the other plans and only sends
the reader, in a pickle, to the tasks. So nothing happens until Spark requests an offset. A batch is done when Spark
calls `commit`, which it does only once the next batch exists, or when Spark requests the offset after it, because the
batch is in the commit log then. Both calls acknowledge the batch, but only if tasks have read it: Spark also commits
batches that its sink has skipped.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from aiozkqueue.errors import CheckpointError, ClaimLostError, InvalidOptionError
from aiozkqueue.queue.admin.ledger_pages import mark, read_page, unmark
from aiozkqueue.queue.batches.ledger import Ledger
from aiozkqueue.queue.commit.handle import QueueHandle
from aiozkqueue.queue.commit.unclaimed import find_pages, item_pages
from aiozkqueue.zookeeper import NoNodeError, below

from .columns import Layout
from .connection import linked
from .offsets import BEGINNING, Offset, require_beginning, require_same
from .options import Content
from .reading import BATCH, item_values, next_page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from aiozkqueue.queue.batches.read_marks import Reading
    from aiozkqueue.queue.batches.records import LedgerState

    from .connection import Link
    from .options import Options

log: Final = logging.getLogger(__name__)

#: The maximum number of messages of a task, unless more tasks are requested.
SHARE: Final = 25_000


@dataclass
class LedgerShare(InputPartition):
    """Parts of pages: the path of each page and the items in it."""

    parts: list[tuple[str, int, int]]
    reading: Reading | None = None
    """The mark that the task stores after reading everything; None: it reads nothing."""


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Creates, divides, reads and acknowledges batches."""

    def __init__(self, schema: StructType, options: Options) -> None:
        if options.content is not Content.ITEMS:
            msg = f"content={options.content.value!r}: only the messages of a queue are a stream"
            raise InvalidOptionError(msg)
        Layout(schema, options)  # refuses columns before anything runs
        self._schema = schema
        self._options = options
        self._opened: tuple[ExitStack, Link, Ledger] | None = None
        self._handed: Offset | None = None  # last; two scans of one plan request the same
        self._told: set[str] = set()  # warnings, each of which is logged once

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset before the first batch."""
        return BEGINNING.encode()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of a batch."""
        most = self._options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """From now on, take only messages that are in the queue now."""
        link, ledger = self._ledger()
        link.call(ledger.freeze)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Acknowledge up to ``start``, and return the next batch, or ``start`` if there is none.

        Raises:
            CheckpointError: ``start`` does not belong to the ledger; nothing was acknowledged.
            UnreadBatchError: no task has read a batch that Spark has committed; nothing was acknowledged.
            ClaimLostError: another query has taken the ledger over.
            AccessDeniedError, ConnectionLostError.
        """
        link, ledger = self._ledger()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        known = Offset.decode(start)
        latest = link.call(self._latest, ledger, known, most)
        return start if latest == known else latest.encode()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[LedgerShare]:
        """Divide a batch.

        Raises:
            CheckpointError: the batch belongs to another ledger, or ends before it starts.
            ClaimLostError: the batch no longer exists, or another query has taken the ledger over.
        """
        batch = Offset.decode(end)
        if batch == BEGINNING == Offset.decode(start):
            return [LedgerShare([])]  # Spark runs the first batch of a checkpoint even if there is no message yet
        if not batch.follows(Offset.decode(start)):
            what = f"queue {self._options.queue!r}: a batch from {start} to {end}"
            msg = (
                f"{what} has no messages: the checkpoint is damaged; start with a new one and startingOffsets=earliest"
            )
            raise CheckpointError(msg)
        link, ledger = self._ledger()
        return link.call(self._divide, ledger, batch)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a share, in a task. Raises: ClaimLostError: a message no longer exists; PayloadError."""
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
            if partition.reading is not None:
                link.call(_note, link, partition.reading)

    def finish(self) -> int:
        """Finish an interrupted acknowledgement; return the number of its messages. Raises: as `commit`."""
        link, ledger = self._ledger()
        return link.call(ledger.finish)

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge up to a batch. Raises: as `latestOffset`."""
        link, ledger = self._ledger()
        link.call(self._acknowledge, ledger, link.call(ledger.state), Offset.decode(end))

    def stop(self) -> None:
        """Close the connection."""
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None

    def __getstate__(self) -> dict[str, object]:
        """Pickle everything but the connection."""
        return {**self.__dict__, "_opened": None}

    def _ledger(self) -> tuple[Link, Ledger]:
        if self._opened is None:
            stack = ExitStack()
            link = stack.enter_context(linked(self._options))
            ledger = link.call(_ledger_of, link)
            self._opened = stack, link, ledger
        return self._opened[1:]

    async def _latest(self, ledger: Ledger, start: Offset, most: int | None) -> Offset:
        state = await ledger.state()
        if start == BEGINNING:
            await ledger.require_ours()
            require_beginning(state, self._options)
        after, stream = start.seq, start.stream
        if start == BEGINNING or not await self._acknowledge(ledger, state, start):
            after, stream = -1, uuid4().hex[:16]
        number = await ledger.next_batch(after, most)
        return start if number == after else Offset(number, state.identity, stream)

    async def _acknowledge(self, ledger: Ledger, state: LedgerState, offset: Offset) -> bool:
        """Acknowledge up to a batch. Return False if that is impossible and the query is to continue without it."""
        try:
            require_same(offset, state, self._options)
            await ledger.acknowledge(offset.seq, offset.stream)
        except CheckpointError as error:
            if self._options.fail_on_loss:
                raise
            self._warn(error)
            return False
        return True

    async def _divide(self, ledger: Ledger, end: Offset) -> list[LedgerShare]:
        state = await ledger.state()
        try:
            require_same(end, state._replace(done=-1), self._options)
            again, most = end == self._handed, self._options.max_attempts
            pages, reading = await ledger.hand_out(end.seq, end.stream, most, again=again)
            self._handed = end
        except (CheckpointError, ClaimLostError) as error:
            if self._options.fail_on_loss:
                raise
            await ledger.require_ours()
            self._warn(error)
            return [LedgerShare([])]
        total = sum(page.items for page in pages)
        shares = max(self._options.min_partitions, -(-total // SHARE))
        size = max(1, -(-total // shares))
        divided: list[LedgerShare] = []
        passed, room = 0, 0
        for page in pages:
            begin = 0
            while begin < page.items:
                if not room:
                    room = min(size, total - passed)
                    divided.append(LedgerShare([], reading.of(passed, passed + room)))
                stop = min(page.items, begin + room)
                divided[-1].parts.append((page.path, begin, stop))
                room -= stop - begin
                passed += stop - begin
                begin = stop
        return divided or [LedgerShare([])]

    def _warn(self, error: Exception) -> None:
        if (told := str(error)) not in self._told:
            self._told.add(told)
            queue = self._options.queue
            log.warning("failOnDataLoss=false, the stream continues: %s", told, extra={"queue": queue})


async def _ledger_of(link: Link) -> Ledger:
    return Ledger(QueueHandle(link.runtime, link.state), link.options.group)


async def _note(link: Link, reading: Reading) -> None:
    """Record that a task has passed its whole share to Spark. Raises: ClaimLostError."""
    try:
        await reading.note(link.runtime.zookeeper)
    except NoNodeError as error:
        msg = f"queue {link.state.name!r}: the batch of this task no longer exists: it was acknowledged or released"
        raise ClaimLostError(msg) from error


async def _read(link: Link, share: LedgerShare, layout: Layout) -> AsyncIterator[list[list[object]]]:
    """Read the messages of a ledger. The sync prevents that a message looks acknowledged on a lagging server."""
    zookeeper, state = link.runtime.zookeeper, link.state
    read = find_pages if layout.reads_locks else item_pages
    await zookeeper.sync(state.paths.base)
    for path, begin, stop in share.parts:
        places = [one.place for one in (await read_page(zookeeper.read, path))[begin:stop]]
        marked = set(await below(zookeeper, path))
        count = 0
        async for found in read(QueueHandle(link.runtime, state), places):
            count += len(found)
            now = link.runtime.server_clock.now()
            decoded = layout.decode([item_values(one, now, layout) for one in found])
            for message_id, reason in decoded.undecodable.items():
                await mark(zookeeper, path, message_id, reason)
            for one in found:  # undecodable messages of an earlier attempt with another schema
                if one.id in marked and one.id not in decoded.undecodable:
                    await unmark(zookeeper, path, one.id)
            yield decoded.rows
        if count < len(places):
            msg = (
                f"queue {state.name!r}: {len(places) - count} messages of a batch no longer exist: they were released "
                "by force and taken by others, or another query of this group has acknowledged them"
            )
            raise ClaimLostError(msg)
