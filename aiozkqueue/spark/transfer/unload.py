"""Moves a queue into Parquet files. Exactly the written messages are acknowledged.

As in a stream (`streaming`), a ledger of the queue records each batch. Until the batch is acknowledged, it has the same
messages and is divided in the same way. Its files are first written to a path that readers ignore. Then they are
published under names that contain the run, the batch and the number of the task. Then the messages are removed. After
an interruption, the next run finds the batch in the ledger, and writes the same rows under the same names. If the batch
is marked as done in the ledger, the next run only removes the remaining messages.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import BinaryType, StringType, StructType

from aiozkqueue.batches.epoch import refuse_order
from aiozkqueue.errors import InvalidOptionError
from aiozkqueue.spark.columns import default_schema
from aiozkqueue.spark.connection import linked, require_queue
from aiozkqueue.spark.failures import unwrapped_errors
from aiozkqueue.spark.folder import Folder
from aiozkqueue.spark.options import Content, parse_options
from aiozkqueue.spark.streaming import QueueStreamReader
from aiozkqueue.zookeeper import ConnectionLossError, Delete, MultiError, SessionExpiredError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from aiozkqueue.spark.connection import Link
    from aiozkqueue.spark.options import Options
    from aiozkqueue.spark.streaming import LedgerShare

#: The paths of the unload's own data in a folder.
OWN: Final = "_unload"
_RUN: Final = f"{OWN}/run"
_DRAFTS: Final = f"{OWN}/drafts"
#: The default number of messages in a batch.
BATCH: Final = 20_000
#: The number of tasks, and of files, of a batch. It is fixed, so that a retried batch is divided in the same way.
_TASKS: Final = 4
_COLUMNS: Final = ("id", "body", "attempt", "enqueued_at", "headers", "key", "group", "priority", "tags")
_PREFIX: Final = "unload-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unloaded:
    """The result of an unload."""

    messages: int
    """The number of messages that were moved to the folder."""
    resumed: bool
    """Whether it continued an earlier, interrupted run."""
    paused: bool = False
    """Whether the queue is paused. The messages that were not in a batch before the pause have stayed in it."""


def unload(
    spark: SparkSession,
    folder: str,
    options: Mapping[str, str],
    *,
    schema: str | None = None,
    on_batch: Callable[[int], object] = lambda _messages: None,
    on_step: Callable[[str], object] = lambda _step: None,
) -> Unloaded:
    """Move the messages that are waiting in a queue to Parquet files. Messages that are put later stay in the queue.

    A message is acknowledged after it has been written. An interrupted unload can be repeated with the same folder: no
    message is lost or duplicated. Until then, the messages of the interrupted batch are held;
    `QueueAdmin.release_ledger` releases them. Consumers, and unloads into other folders, may run at the same time. A
    paused queue keeps its messages: resume it first.

    Args:
        spark: a Spark session, with any cluster. With Spark Connect, this process must also reach the folder.
        folder: the target on any file system of Spark; a new folder, or the folder of earlier unloads.
        options: the options of ``readStream.format("aiozkqueue")`` except ``group``; a batch has up to
            ``maxOffsetsPerTrigger`` messages, 20,000 by default.
        schema: columns to decode payloads to, such as ``"id int, name string"``. The option ``mode`` decides whether a
            payload that does not decode is kept as text in ``_corrupt_record`` or fails the run. Each row keeps its
            payload in ``_body``, because decoding rounds decimals and drops fields. None: the payload is not decoded.
        on_batch: called with the number of messages of each batch.
        on_step: called with the name of each step when it begins.

    Raises:
        InvalidOptionError: an option is invalid, another queue or run uses the folder, or the queue keeps an order or
            groups, or collapses messages.
        NotFoundError: there is no such queue.
        ClaimLostError: another process continues the same run, or its ledger was released.
        PayloadError: a payload does not decode, and ``mode`` is ``FAILFAST``.
        ConnectionLostError, AccessDeniedError.
    """
    if "group" in {name.lower() for name in options}:
        msg = "group: an unload uses its own group; leave the option out"
        raise InvalidOptionError(msg)
    parsed = parse_options(options)
    if schema is not None and "timezone" not in {name.lower() for name in options}:
        zone = spark.conf.get("spark.sql.session.timeZone")
        parsed = parse_options({**options, "timeZone": zone or parsed.time_zone})
    target = Folder(spark, folder)
    target.require(OWN)
    columns = _columns(schema, parsed.corrupt)
    QueueStreamReader(columns, parsed)  # refuses options and columns before anything is stored
    on_step("begin")
    with linked(parsed) as link, unwrapped_errors():
        link.call(require_queue, link)
        link.call(_is_paused, link)  # refuses an order before the folder records a run
        run, resumed = _run(target, link)
        reader = QueueStreamReader(columns, _options(parsed, run))
        try:
            work = _Unload(spark, target, reader, columns=columns, run=run, on_step=on_step)
            messages = work.all(parsed.max_offsets or BATCH, on_batch)
        finally:
            reader.stop()
        # The folder's record is removed before the ledger. Otherwise batch numbers could be used a second time.
        on_step("end")
        target.remove(_RUN)
        on_step("forget")
        link.call(_forget, link, f"{_PREFIX}{run}")
        paused = link.call(_is_paused, link)
    return Unloaded(messages=messages, resumed=resumed, paused=paused)


class _Unload:
    """The batches of a run."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Folder,
        reader: QueueStreamReader,
        *,
        columns: StructType,
        run: str,
        on_step: Callable[[str], object],
    ) -> None:
        self._spark = spark
        self._folder = folder
        self._reader = reader
        self._columns = columns
        self._run = run
        self._on_step = on_step

    def all(self, most: int, on_batch: Callable[[int], object]) -> int:
        """Write the batches one after the other. The first batch may be from an interrupted run."""
        reader, start = self._reader, self._reader.initialOffset()
        messages = reader.finish()  # the batch was published by an earlier run
        if messages:
            on_batch(messages)
        reader.prepareForTriggerAvailableNow()
        while (end := reader.latestOffset(start, ReadMaxRows(most))) != start:
            shares = reader.partitions(start, end)
            self._write(f"{self._run}-{end['seq']:010d}", shares)
            self._on_step("acknowledge")
            reader.commit(end)
            start = end
            brought = sum(share.messages for share in shares)
            messages += brought
            on_batch(brought)
        return messages

    def _write(self, name: str, shares: Sequence[LedgerShare]) -> None:
        self._on_step("write")
        folder, draft = self._folder, f"{_DRAFTS}/{uuid4().hex}"  # unique, even if an earlier process still writes
        numbers = self._spark.range(0, len(shares), 1, len(shares))
        frame = numbers.mapInArrow(_Reading(self._reader, list(shares)), self._columns)
        frame.write.parquet(folder.at(draft))
        folder.keep(draft)
        self._on_step("publish")
        folder.publish(draft, name)
        folder.remove(_DRAFTS)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Reads the shares of a batch with the given numbers."""

    reader: QueueStreamReader
    shares: list[LedgerShare]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the shares. Raises: as `QueueStreamReader.read`."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.reader.read(self.shares[number])


def _options(options: Options, run: str) -> Options:
    """Return the options of the stream, whose group belongs to the run."""
    return replace(
        options,
        group=f"{_PREFIX}{run}",
        min_partitions=_TASKS,
        continues_ledger=True,
        fail_on_loss=True,
        max_attempts=None,  # a batch is never divided, because its files are named only once
    )


def _columns(schema: str | None, corrupt: str) -> StructType:
    if schema is None:
        items_schema = default_schema(Content.ITEMS)
        return StructType([items_schema[name] for name in _COLUMNS])
    advice = f"schema {schema!r}: give columns as in 'id int, name string'"
    try:
        columns = StructType.fromDDL(schema)
    except PySparkException as error:
        msg = f"{advice}: {str(error).strip().partition(chr(10))[0]}"
        raise InvalidOptionError(msg) from error
    if not isinstance(columns, StructType):
        raise InvalidOptionError(advice)
    for name, kind in (("_id", StringType()), (corrupt, StringType()), ("_body", BinaryType())):
        if name not in columns.fieldNames():
            columns = columns.add(name, kind)
    return columns


def _run(folder: Folder, link: Link) -> tuple[str, bool]:
    """Return the run that is recorded in the folder, or a new run, and whether it was recorded."""
    whose = f"{link.options.root}/{link.options.queue}"
    if (noted := folder.noted(_RUN)) is not None:
        run, _, queue = noted.partition(" ")
        if queue != whose:
            msg = f"an unload of {queue} into {folder.path} was interrupted: finish it first, or use another folder"
            raise InvalidOptionError(msg)
        if link.call(_exists, link, f"{_PREFIX}{run}"):
            return run, True
    folder.remove(_RUN)
    run = uuid4().hex[:16]
    folder.note(_RUN, f"{run} {whose}")
    return run, False


async def _is_paused(link: Link) -> bool:
    """Whether the queue is paused now. Raises: InvalidOptionError: the queue has an order."""
    if not await link.state.open_latest():
        return False
    refuse_order(link.state)
    return bool(link.state.config.paused)


async def _exists(link: Link, group: str) -> bool:
    return await link.runtime.zookeeper.exists(f"{link.state.paths.ledgers}/{group}") is not None


async def _forget(link: Link, group: str) -> None:
    """Remove the run's empty ledger, whose name is never used again.

    If the connection is lost at this moment, an empty entry stays in the list of ledgers.
    """
    with suppress(MultiError, ConnectionLossError, SessionExpiredError):
        await link.runtime.zookeeper.multi([Delete(f"{link.state.paths.ledgers}/{group}")])
