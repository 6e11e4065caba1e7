"""A queue as a stream: repeatable micro-batches from the ledger, removed when they are done.

Spark creates a reader in two processes. One stays with the driver and returns offsets. The other only plans, and sends
the reader to the tasks in a pickle. So nothing happens until Spark requests an offset. A batch is done when Spark calls
`commit`, which happens only after the next batch exists. A batch is also done when Spark requests the offset after it,
because the batch is then in the commit log. Both calls acknowledge the batch, but only if tasks have read it, because
Spark also commits batches that its sink has skipped.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from aiozkqueue.batches.epoch import deletion_of
from aiozkqueue.batches.ledger import Ledger
from aiozkqueue.batches.making import limit_of
from aiozkqueue.errors import AccessDeniedError, CheckpointError, ClaimLostError, InvalidOptionError, PayloadError
from aiozkqueue.layout import MalformedError
from aiozkqueue.operations.bundles import bundle_pages
from aiozkqueue.operations.lag import Lag
from aiozkqueue.operations.ledger_pages import mark, marks_below, read_page, unmark
from aiozkqueue.queue.commit.unclaimed import find_pages, item_pages
from aiozkqueue.worker.heap import settled_heap
from aiozkqueue.zookeeper import NoNodeError

from .background import BackgroundWork
from .batching import Batches
from .bundle_arrays import ColumnarPage
from .columns import RowLayout
from .connection import linked
from .dividing import Piece, cut, divide, pieces_of
from .offsets import BEGINNING, Offset, require_beginning, require_same
from .options import Content, Mode
from .reading import bundled_values, columnar_part_of, item_values
from .termination import end_if_signalled, stop_on_sigterm

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from aiozkqueue.batches.read_marks import Reading
    from aiozkqueue.batches.records import LedgerState
    from aiozkqueue.operations.ledger_marks import Mark
    from aiozkqueue.operations.ledger_pages import Entry
    from aiozkqueue.queue.redelivery.bundles import BundleState

    from .batching import Page
    from .connection import Link
    from .dividing import PagePart
    from .options import Options

log: Final = logging.getLogger(__name__)

#: The maximum number of messages of a task. A task has fewer if more tasks are requested.
SHARE: Final = 25_000
#: The maximum time that a stopping query takes to remove and release messages, seconds.
STOPPING: Final = 5.0


@dataclass
class LedgerShare(InputPartition):
    """Messages of a batch for one task."""

    parts: list[PagePart]
    reading: Reading | None = None
    """The mark that the task stores after it has read everything; None: it reads nothing."""
    attempt: int = -1
    """The attempt at the batch; see `batches.ledger.HandedOut`."""
    batch: int = 0
    """The number of the batch."""

    @property
    def messages(self) -> int:
        """The number of messages."""
        return sum(part.stop - part.begin for part in self.parts)


@dataclass(frozen=True, slots=True)
class _OpenLedger:
    """The driver's session and its work on the ledger."""

    stack: ExitStack
    """Ends the session."""
    link: Link
    ledger: Ledger
    background: BackgroundWork
    """The work while tasks read a batch."""
    lag: Lag


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Creates, divides, reads and acknowledges batches."""

    def __init__(self, schema: StructType, options: Options) -> None:
        if options.content is not Content.ITEMS:
            msg = f"content={options.content.value!r}: only the messages of a queue can be streamed"
            raise InvalidOptionError(msg)
        RowLayout(schema, options)  # refuses bad columns before anything runs
        self._schema = schema
        self._options = options
        self._opened: _OpenLedger | None = None
        self._handed: Offset | None = None  # the batch divided last; two scans of one plan request the same one
        self._limit = options.max_offsets  # of the next batch
        self._marked: Offset | None = None  # the batch acknowledged last
        self._warned: set[str] = set()  # warnings, each of which is logged once

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset before the first batch."""
        return BEGINNING.encode()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of a batch. Spark supports only one; ``maxBytesPerTrigger`` applies in addition."""
        most, size = self._options.max_offsets, self._options.max_bytes
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if size is None else ReadMaxBytes(size)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """From now on, take only messages that are already in the queue."""
        opened = self._open()
        opened.link.call(opened.ledger.freeze)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Acknowledge the batches up to ``start``; return the offset of the next batch, or ``start`` if there is none.

        The messages of ``start`` are removed while tasks read the next batch, and the batch after that is prepared.

        Raises:
            CheckpointError: ``start`` does not belong to the ledger; nothing was acknowledged.
            UnreadBatchError: Spark has committed a batch that no task has read; nothing was acknowledged.
            ClaimLostError: another query has taken the ledger over.
            AccessDeniedError, ConnectionLostError.
        """
        opened = self._open()
        self._limit = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        offset = Offset.decode(start)
        self._join()
        latest = opened.link.call(self._latest, opened.ledger, offset, self._limit)
        if latest == offset:
            return start
        opened.background.remove()
        return latest.encode()

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802 - Spark's name
        """Return the lag for the progress of the query, as `Lag.figures`; None: this user may not read it."""
        opened = self._open()
        try:
            return opened.link.call(opened.lag.figures)
        except AccessDeniedError as error:
            self._warn(error, "the progress does not show the lag")
            return None

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
        opened = self._open()
        again = batch == self._handed
        shares = opened.link.call(partial(self._divide, opened, batch, again=again))
        total = sum(share.messages for share in shares)
        if not again and total >= limit_of(self._limit):  # otherwise the next batch may wait for more messages
            opened.background.prepare(batch.seq, self._limit)
        return shares

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a share, in a task. Raises: ClaimLostError: a message no longer exists; PayloadError."""
        assert isinstance(partition, LedgerShare)  # noqa: S101 - made by `partitions`
        if not partition.parts:
            return
        layout = RowLayout(self._schema, self._options)
        options = self._options.after_contact if partition.batch else self._options
        with settled_heap(collect=False), linked(options) as link:
            batches = Batches(layout)
            for page in link.each_of(_read(link, partition, layout)):
                yield from batches.add(page)
            yield from batches.finish()
            if partition.reading is not None:
                link.call(_note, link, partition.reading)

    def finish(self) -> int:
        """Finish an interrupted acknowledgement; return the number of its messages. Raises: as `commit`."""
        opened = self._open()
        return opened.link.call(opened.ledger.finish)

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge the batches up to ``end``, unless `latestOffset` has done so. Raises: as `latestOffset`."""
        offset = Offset.decode(end)
        if offset in {BEGINNING, self._marked}:
            return  # a query that starts on an empty queue has a first batch without messages
        opened = self._open()
        link, ledger = opened.link, opened.ledger
        self._join()
        if link.call(self._mark_done, ledger, link.call(self._admitted, ledger, offset), offset):
            link.call(ledger.finish)

    def stop(self) -> None:
        """Release the prepared batch, and close the connection."""
        if self._opened is not None:
            self._opened.background.stop(STOPPING)  # the next driver finishes the remaining work
            self._opened.stack.close()
            self._opened = None
        end_if_signalled()

    def __getstate__(self) -> dict[str, object]:
        """Pickle everything but the connection."""
        return {**self.__dict__, "_opened": None}

    def _join(self) -> None:
        """Wait until earlier batches are removed and the next one is prepared. Raises: as `latestOffset`."""
        if self._opened is not None:
            self._opened.background.join()

    def _open(self) -> _OpenLedger:
        if self._opened is None:
            stop_on_sigterm()
            stack = ExitStack()
            link = stack.enter_context(linked(self._options))
            ledger, lag = link.call(_ledger_and_lag, link)
            self._opened = _OpenLedger(stack, link, ledger, BackgroundWork(link, ledger), lag)
        return self._opened

    async def _latest(self, ledger: Ledger, start: Offset, most: int | None) -> Offset:
        state = await self._admitted(ledger, start)
        if start == BEGINNING:
            require_beginning(state, self._options)
        after, stream = start.seq, start.stream
        if start == BEGINNING or not await self._mark_done(ledger, state, start):
            after, stream = -1, uuid4().hex[:16]
        number = await ledger.next_batch(after, most)
        if number != after:
            return Offset(number, state.identity, stream)
        if state.batches:
            await ledger.finish()
        return start

    async def _admitted(self, ledger: Ledger, offset: Offset, done: int | None = None) -> LedgerState:
        """Return the state of the ledger, which this process takes over unless it has to refuse the offset.

        A query that is refused must not stop the query that uses the ledger. ``done`` replaces the highest number
        acknowledged; None: the stored one.

        Raises: CheckpointError.
        """
        if (seen := await ledger.peek_state()) is not None:
            if offset == BEGINNING:
                require_beginning(seen, self._options)
            elif self._options.fail_on_loss:
                require_same(offset, seen if done is None else seen._replace(done=done), self._options)
        state = await ledger.state()
        return state if done is None else state._replace(done=done)

    async def _mark_done(self, ledger: Ledger, state: LedgerState, offset: Offset) -> bool:
        """Acknowledge the batches up to an offset. Return False if it is refused and the query continues anyway."""
        try:
            require_same(offset, state, self._options)
            if state.batches:
                await ledger.mark_done(offset.seq, offset.stream)
            self._marked = offset
        except CheckpointError as error:
            if self._options.fail_on_loss:
                raise
            self._warn(error)
            return False
        return True

    async def _divide(self, opened: _OpenLedger, end: Offset, *, again: bool) -> list[LedgerShare]:
        """Divide a batch among tasks; ``again``: it was divided before, for the same attempt."""
        ledger = opened.ledger
        state = await self._admitted(ledger, end, done=-1)
        try:
            require_same(end, state, self._options)
            most = self._options.max_attempts
            pages, reading, attempt = await ledger.hand_out(end.seq, end.stream, most, again=again)
            self._handed = end
        except (CheckpointError, ClaimLostError) as error:
            if self._options.fail_on_loss:
                raise
            await ledger.require_ours()
            self._warn(error)
            return [LedgerShare([])]
        total = sum(page.messages for page in pages)
        least = self._options.min_partitions
        pieces = await pieces_of(opened.link.handle, pages) if least > 1 else [Piece(total)]
        sizes = divide(pieces, max(least, -(-total // SHARE)))
        shares = [
            LedgerShare(parts, reading.of(stop - size, stop), attempt, end.seq)
            for parts, size, stop in zip(cut(pages, sizes), sizes, accumulate(sizes), strict=True)
        ]
        return shares or [LedgerShare([])]

    def _warn(self, error: Exception, what: str = "failOnDataLoss=false, the stream continues") -> None:
        if (text := str(error)) not in self._warned:
            self._warned.add(text)
            queue = self._options.queue
            log.warning("%s: %s", what, text, extra={"queue": queue})


async def _ledger_and_lag(link: Link) -> tuple[Ledger, Lag]:
    return Ledger(link.handle, link.options.group, most_bytes=link.options.max_bytes), Lag(link.handle)


async def _note(link: Link, reading: Reading) -> None:
    """Record that a task has passed its whole share to Spark. Raises: ClaimLostError."""
    try:
        await reading.note(link.runtime.zookeeper)
    except ClaimLostError as error:
        if (deleted := await deletion_of(link.state)) is not None:
            raise deleted from error
        raise
    except NoNodeError as error:
        raise await _absence(link) from error


async def _absence(link: Link) -> ClaimLostError:
    """Return the error of a task whose batch no longer exists."""
    return await deletion_of(link.state) or ClaimLostError(
        f"queue {link.state.name!r}: the batch of this task no longer exists: it was acknowledged or released"
    )


async def _read(link: Link, share: LedgerShare, layout: RowLayout) -> AsyncIterator[Page]:
    """Read the messages of a share. Raises: ClaimLostError: the batch or one of its messages no longer exists."""
    try:
        async for page in _read_share(link, share, layout):
            yield page
    except NoNodeError as error:
        raise await _absence(link) from error


async def _read_share(link: Link, share: LedgerShare, layout: RowLayout) -> AsyncIterator[Page]:
    """Read the messages of a share. Without the sync, messages could be missing on a server that lags behind."""
    zookeeper, state = link.runtime.zookeeper, link.state
    await zookeeper.sync(state.paths.base)
    paths = list(dict.fromkeys(part.page for part in share.parts))
    contents = await asyncio.gather(*(read_page(zookeeper.read, path) for path in paths))
    pages = dict(zip(paths, contents, strict=True))
    marked: dict[str, Mark] = {}
    for marks in await asyncio.gather(*(marks_below(zookeeper, path) for path in paths)):
        marked |= marks
    slices = [found for part in share.parts for found in _slices(part, pages[part.page])]
    count = 0
    async for found in _messages(link, slices, layout, share.attempt, columnar=not marked):
        count += found.number
        if isinstance(found.messages, ColumnarPage):
            yield found.messages
            continue
        decoded = layout.decode(found.messages)
        for values, page in zip(found.messages, found.pages, strict=True):
            message_id = str(values["id"])
            if (reason := decoded.undecodable.get(message_id)) is not None:
                await mark(zookeeper, page, message_id, reason, share.attempt)
            elif message_id in marked and not marked[message_id].is_of(share.attempt):  # an earlier attempt's
                await unmark(zookeeper, page, message_id, share.attempt)
        yield decoded
    if (missing := sum(part.last - part.first for part in slices) - count) > 0:
        if (deleted := await deletion_of(state)) is not None:
            raise deleted
        msg = (
            f"queue {state.name!r}: {missing} messages of a batch no longer exist: they were released by force and "
            "taken by other clients, or another query of this group has acknowledged them"
        )
        raise ClaimLostError(msg)


class Slice(NamedTuple):
    """Messages of an item or bundle of a page, from ``first`` to before ``last``."""

    page: str
    entry: Entry
    first: int
    last: int


class ReadMessages(NamedTuple):
    """Messages that were read."""

    messages: list[dict[str, object]] | ColumnarPage
    pages: list[str]
    """The page of each message, if they are not columns."""
    number: int
    """The number of messages that were found. Some of a damaged bundle are not in ``messages``."""


def _slices(part: PagePart, entries: Iterable[Entry]) -> list[Slice]:
    """Return the parts of a page's items and bundles that contain these messages of it."""
    slices: list[Slice] = []
    passed = 0
    for entry in entries:
        first, last = max(0, part.begin - passed), min(entry.messages, part.stop - passed)
        if first < last:
            slices.append(Slice(part.page, entry, first, last))
        passed += entry.messages
    return slices


async def _messages(
    link: Link, slices: Sequence[Slice], layout: RowLayout, attempt: int, *, columnar: bool
) -> AsyncIterator[ReadMessages]:
    """Read messages in order; ``columnar``: the messages of a bundle may stay together."""
    handle, read = link.handle, find_pages if layout.reads_locks else item_pages
    for bundled, run in groupby(slices, lambda part: part.entry.is_bundle):
        some = {part.entry.place: part for part in run}
        if bundled:
            async for bundles in bundle_pages(handle, list(some)):
                pairs = [(some[place], state) for place, state in bundles]
                for found in await _of_bundles(link, pairs, layout, attempt, columnar=columnar):
                    yield found
            continue
        async for items in read(handle, list(some)):
            now = link.runtime.server_clock.now()
            values = [item_values(item, now, layout) for item in items]
            yield ReadMessages(values, [some[item.place].page for item in items], len(items))


async def _of_bundles(
    link: Link, bundles: Iterable[tuple[Slice, BundleState]], layout: RowLayout, attempt: int, *, columnar: bool
) -> list[ReadMessages]:
    """Return the messages of bundles in order; a damaged bundle has none, and is marked."""
    found: list[ReadMessages] = []
    for part, state in bundles:
        size = part.last - part.first
        try:
            columns = columnar_part_of(state, layout, part.first, part.last) if columnar else None
            messages = state.messages()[part.first : part.last] if columns is None else []
        except MalformedError as error:
            await _note_damage(link, part.page, state.name.id, attempt, error)
            found.append(ReadMessages([], [], size))
            continue
        last = found[-1] if found else None
        if columns is None:
            values = bundled_values(state, messages, layout)
            found.append(ReadMessages(values, [part.page] * len(values), len(values)))
        elif last is not None and isinstance(last.messages, ColumnarPage):
            last.messages.parts.append(columns)
            found[-1] = last._replace(number=last.number + size)
        else:
            found.append(ReadMessages(ColumnarPage([columns]), [], size))
    return found


async def _note_damage(link: Link, page: str, bundle: str, attempt: int, error: MalformedError) -> None:
    """Mark a bundle that does not decode, so that it becomes a dead letter. Raises: PayloadError: mode FAILFAST."""
    what = f"queue {link.state.name!r}: bundle {bundle} does not decode: {error}"
    if link.options.mode is Mode.FAILFAST:
        raise PayloadError(what) from error
    log.error("%s; it becomes one dead letter", what, extra={"queue": link.state.name})
    await mark(link.runtime.zookeeper, page, bundle, str(error), attempt)
