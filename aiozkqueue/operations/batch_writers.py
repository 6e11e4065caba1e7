"""The records of Spark's batch writers, and the removal of batches of writers that no longer exist.

``sinks/<writer>`` holds the current batch of a writer, and is written whenever that changes: its version is the fence
for all tasks that put for it. ``stage`` names the pending batch, as its items do (see `candidates.batches`);
``aborted`` names the batches whose items are being removed. Its children hold the progress of each part of a batch, in
the writer's own format.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from pydantic_core import SchemaValidator, ValidationError, to_json
from pydantic_core import core_schema as schema

from aiozkqueue.errors import NotCommittedError, NotFoundError
from aiozkqueue.layout import ItemRef, fits_path, has_field, is_deleted, item_field, messages_in, name_at
from aiozkqueue.moments import moment_at
from aiozkqueue.queue.candidates.batches import batch_lock_of
from aiozkqueue.queue.candidates.collectors import Matching
from aiozkqueue.runtime.acl_errors import access_denied, translate_denials
from aiozkqueue.zookeeper import (
    NO_VERSION,
    BadVersionError,
    Check,
    Delete,
    MultiError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    SetData,
    apply_until_answered,
    below,
    read_pages,
)

from .contradictions import MOST_TRIES, contradiction
from .listing import collect_children
from .stats import lanes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pydantic_core.core_schema import CoreSchema, TypedDictField

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.zookeeper import Node, Operation, Stat

#: Items removed in one multi.
TOGETHER: Final = 500
#: Runs that a record refuses, at most; the earliest are dropped.
MOST_ENDED: Final = 256


def name_of_write(write_id: str) -> str:
    """Return the name of a write's writer: its `writeId` or, without one, its run."""
    return f"write {write_id}"


def name_of_application(application: str) -> str:
    """Return the name of the writer of an application's numbered writes: of its `txnAppId`."""
    return f"application {application}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterRecord:
    """The stored record of a writer."""

    name: str
    """The name that the user knows."""
    batch: int = -1
    """The pending batch, or the last complete one; -1: none yet."""
    stage: str | None = None
    """The lock of the pending batch's items; None: the batch is complete, or was discarded."""
    complete: bool = True
    last: int | None = None
    """The last complete batch before this one; None: an older program wrote the record, and all of them are."""
    aborted: tuple[str, ...] = ()
    """Discarded batches that may have items left."""
    run: str = ""
    """The current writer: see `BatchWriter.begin`."""
    origin: str = ""
    """See `BatchWriter.begin`."""
    client: str = ""
    """The session that wrote the record."""
    ended: tuple[str, ...] = ()
    """The runs that can no longer begin this batch: each was discarded, or replaced by another."""

    def refuses(self, run: str) -> bool:
        """Whether this run can no longer begin this batch. Older programs write only the run, when they discard it."""
        return run in self.ended or (self.stage is None and self.run == run)

    def ending(self, run: str) -> WriterRecord:
        """Return the record with this run among those that can no longer begin the batch."""
        before = tuple(ended for ended in self.ended if ended != run)
        return replace(self, ended=(*before, run)[-MOST_ENDED:]) if run else self

    def discarded(self) -> WriterRecord:
        """Return the record after its pending batch was discarded."""
        aborted = self.aborted if self.stage is None else (*self.aborted, self.stage)
        return replace(self.ending(self.run), stage=None, aborted=aborted)

    def encode(self) -> bytes:
        """The bytes to store."""
        return to_json(asdict(self))

    @property
    def last_complete(self) -> int:
        """The last complete batch; -1: none yet."""
        if self.complete:
            return self.batch
        return self.batch - 1 if self.last is None else self.last

    @property
    def of_single_run(self) -> bool:
        """Whether the name belongs to a single run, which no other run can continue: a write without `writeId`."""
        return self.name == name_of_write(self.run)

    @classmethod
    def decode(cls, data: bytes) -> WriterRecord | None:
        """Decode a record; return None if it does not decode."""
        try:
            return cls(**_RECORD.validate_json(data))
        except ValidationError:
            return None


def _field(field_schema: CoreSchema) -> TypedDictField:
    """Return the field, which has a default in `WriterRecord`."""
    return schema.typed_dict_field(field_schema, required=False)


_RECORD: Final = SchemaValidator(
    schema.typed_dict_schema(
        {
            "name": schema.typed_dict_field(schema.str_schema()),
            "batch": _field(schema.int_schema()),
            "stage": _field(schema.nullable_schema(schema.str_schema())),
            "complete": _field(schema.bool_schema()),
            "last": _field(schema.nullable_schema(schema.int_schema())),
            "aborted": _field(schema.tuple_variable_schema(schema.str_schema())),
            "run": _field(schema.str_schema()),
            "origin": _field(schema.str_schema()),
            "client": _field(schema.str_schema()),
            "ended": _field(schema.tuple_variable_schema(schema.str_schema())),
        }
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterInfo:
    """An incomplete batch of a Spark writer: its messages cannot be taken yet."""

    writer: str
    """The znode of the writer."""
    name: str
    batch: int
    messages: int
    """The messages put for it, which are not visible yet."""
    client: str
    """The session that began the batch."""
    changed: datetime
    """The time when it began, in ZooKeeper's time."""


async def writers(handle: QueueHandle[Runtime]) -> list[WriterInfo]:
    """List the writers of a queue that have a pending batch, or remains of one.

    Raises: AccessDeniedError.
    """
    found: list[WriterInfo] = []
    counts: dict[str, int] = {}
    for writer, stat, record in await _records(handle):
        if record.stage is None and not record.aborted:
            continue
        if not counts:
            counts = await _count(handle)
        batch_visibility = [visibility for visibility in (record.stage, *record.aborted) if visibility is not None]
        found.append(
            WriterInfo(
                writer=writer,
                name=record.name,
                batch=record.batch,
                messages=sum(counts.get(stage, 0) for stage in batch_visibility),
                client=record.client,
                changed=moment_at(stat.mtime),
            )
        )
    return found


async def began_by(handle: QueueHandle[Runtime], origin: str, batch: int) -> list[str]:
    """Return the names of the writers with a pending batch that this origin began.

    Raises: AccessDeniedError.
    """
    return [
        record.name
        for _, _, record in await _records(handle)
        if record.stage and (record.origin, record.batch) == (origin, batch)
    ]


async def _records(handle: QueueHandle[Runtime]) -> list[tuple[str, Stat, WriterRecord]]:
    """Read the record of each writer of a queue."""
    with translate_denials(handle.name):
        writers = sorted(await below(handle.zookeeper, handle.paths.sinks))
        nodes = await read_pages(handle.zookeeper, [f"{handle.paths.sinks}/{writer}" for writer in writers])
    return [
        (writer, node.stat, record)
        for writer, node in zip(writers, nodes, strict=True)
        if node is not None and (record := WriterRecord.decode(node.data)) is not None
    ]


class StoredRecord(NamedTuple):
    """The znode of a writer's record, and the check to send with a change of it."""

    node: Node | None
    same_queue: Check
    """Asserts that the queue exists and was not deleted since. The version of a record starts again with a new one."""


async def read_record(handle: QueueHandle[Runtime], writer: str) -> StoredRecord:
    """Read the record of a writer. A deleted queue has none, even if it is still to be cleared.

    Raises: AccessDeniedError.
    """
    base = handle.paths.base
    with translate_denials(handle.name):  # the queue first, so that the record is one of this queue or of a later one
        queue, node = await handle.zookeeper.read_many([base, f"{handle.paths.sinks}/{writer}"])
    if queue is None or is_deleted(queue.data):
        return StoredRecord(None, Check(base, NO_VERSION))
    return StoredRecord(node, Check(base, queue.stat.version))


async def give_up(handle: QueueHandle[Runtime], writer: str, batch: int | None = None, run: str | None = None) -> int:
    """Remove the messages of a writer's pending batch; return how many.

    No consumer has seen any of them. Further puts of that batch are refused. ``batch``, ``run``: discard only this
    batch, and only while this run is writing it.

    Raises: NotFoundError: there is no such writer; AccessDeniedError; NotCommittedError: as `clear_away`.
    """
    zookeeper, path = handle.zookeeper, f"{handle.paths.sinks}/{writer}"
    unknown = NotFoundError(
        f"queue {handle.name!r} has no writer {writer!r}; `aiozkqueue ledgers list` shows the writers"
    )
    if "/" in writer or not fits_path(writer):
        raise unknown
    for tries in count(1):
        await zookeeper.sync(path)
        node, same_queue = await read_record(handle, writer)
        if node is None:
            raise unknown
        if tries > MOST_TRIES:
            raise contradiction(handle.name, path)
        record = WriterRecord.decode(node.data)
        if record is None or record.stage is None or batch not in (None, record.batch) or run not in (None, record.run):
            break
        discarded = SetData(path, record.discarded().encode(), node.stat.version)
        if await _write(handle, [same_queue, discarded], again=True):
            break
    return await clear_away(handle, writer)


async def abandon(handle: QueueHandle[Runtime], writer: str, before: int) -> int:
    """Discard the batch of a run that no other run can continue, if nothing was put for it since a moment (ms).

    If the run is alive after all, and only slow, the fence refuses its further puts and its completion of the batch. So
    the run fails, and never makes a part of its rows visible.

    Raises: AccessDeniedError.
    """
    zookeeper, path = handle.zookeeper, f"{handle.paths.sinks}/{writer}"
    node, _ = await read_record(handle, writer)
    record = None if node is None else WriterRecord.decode(node.data)
    if node is None or record is None or record.stage is None or not record.of_single_run or node.stat.mtime > before:
        return 0
    for part in await below(zookeeper, path):
        stat = await zookeeper.exists(f"{path}/{part}")
        if stat is not None and stat.mtime > before:
            return 0
    return await give_up(handle, writer, record.batch)


async def clear_away(handle: QueueHandle[Runtime], writer: str) -> int:
    """Remove the messages of a writer's discarded batches; return how many. It may be interrupted at any point.

    Raises: AccessDeniedError; NotCommittedError: the lock of such a batch cannot be removed.
    """
    path, removed, in_vain = f"{handle.paths.sinks}/{writer}", 0, 0
    while True:
        node, same_queue = await read_record(handle, writer)
        record = None if node is None else WriterRecord.decode(node.data)
        if node is None or record is None or not record.aborted:
            return removed
        stage = record.aborted[0]
        removed += await _remove(handle, stage)
        cleared = replace(record, aborted=record.aborted[1:])
        # The lock is removed last: until then the remaining items are invisible.
        unlock = await unlocking(handle, stage)
        change = SetData(path, cleared.encode(), node.stat.version)
        in_vain = 0 if await _write(handle, [same_queue, change, *unlock], again=True) else in_vain + 1
        if in_vain == MOST_TRIES:
            raise contradiction(handle.name, path)


async def forget(handle: QueueHandle[Runtime], writer: str, before: int) -> int:
    """Remove the record of a writer whose last batch was complete before a moment (ms, ZooKeeper's time).

    Return 1 if so.
    """
    zookeeper, path = handle.zookeeper, f"{handle.paths.sinks}/{writer}"
    node, same_queue = await read_record(handle, writer)
    record = None if node is None else WriterRecord.decode(node.data)
    if node is None or record is None or record.aborted or node.stat.mtime > before:
        return 0
    if not record.complete and (record.stage is not None or not record.of_single_run):
        return 0
    parts = [Delete(f"{path}/{name}") for name in await below(zookeeper, path)]
    for start in range(0, len(parts), TOGETHER):  # if a batch begins now, the fence has changed: none of it is removed
        fence = [same_queue, Check(path, node.stat.version)]
        together: list[Operation] = [*fence, *parts[start : start + TOGETHER]]
        if not await _write(handle, together):
            return 0
    return int(await _write(handle, [same_queue, Delete(path, node.stat.version)]))


async def unlocking(handle: QueueHandle[Runtime], stage: str) -> list[Operation]:
    """Return the operations that remove the lock of a batch; none if it was removed manually."""
    lock = handle.paths.lock(stage)
    with translate_denials(handle.name):
        return [] if await handle.zookeeper.exists(lock) is None else [Delete(lock)]


async def _remove(handle: QueueHandle[Runtime], stage: str) -> int:
    removed = 0
    for folder in await lanes(handle):
        names = await _of_stage(handle, folder, stage)
        for start in range(0, len(names), TOGETHER):
            removed += await _delete(handle, [ItemRef(folder, name).path for name in names[start : start + TOGETHER]])
    return removed


async def _delete(handle: QueueHandle[Runtime], paths: Sequence[str]) -> int:
    """Delete these items, one after the other if another client deletes them too; return the number of messages."""
    deleted = paths
    if not await _write(handle, [Delete(path) for path in paths]):
        deleted = [path for path in paths if await _write(handle, [Delete(path)])]
    return sum(messages_in(name_at(path)) for path in deleted)


async def _write(handle: QueueHandle[Runtime], operations: Sequence[Operation], *, again: bool = False) -> bool:
    """Apply a repeatable change; return whether this call applied it.

    ``again``: the caller reads the data and tries again if it was not applied.

    Raises: AccessDeniedError; NotCommittedError: as `require_conflict`, if the caller tries again.
    """
    try:
        await apply_until_answered(handle.zookeeper, operations)
    except MultiError as refusal:
        if isinstance(refusal.error, NoAuthError):
            raise access_denied(handle.name, refusal.error) from refusal
        if again:
            require_conflict(handle.name, refusal)
        return False
    return True


def require_conflict(queue: str, refusal: MultiError) -> None:
    """Return if the data may have changed since it was read; otherwise a repetition is refused too.

    Raises: NotCommittedError.
    """
    if not isinstance(refusal.error, NoNodeError | NodeExistsError | BadVersionError):
        raise NotCommittedError(f"queue {queue!r}: {refusal.error}; nothing was applied") from refusal


async def marks_of(handle: QueueHandle[Runtime], stage: str) -> set[str]:
    """List the fields ``r`` of the items of a batch, by which the writer identifies them."""
    marks: set[str] = set()
    for folder in await lanes(handle):
        for name in await _of_stage(handle, folder, stage):
            marks.add("r" + item_field(name, "r"))
    return marks


async def _of_stage(handle: QueueHandle[Runtime], folder: str, stage: str) -> Sequence[str]:
    """List the items of a batch; no other names are kept in memory."""
    listed = await collect_children(handle, folder, lambda: Matching(lambda name: batch_lock_of(name) == stage))
    return listed.names


async def _count(handle: QueueHandle[Runtime]) -> dict[str, int]:
    """Return the number of messages of each batch."""
    counts: Counter[str] = Counter()
    for folder in await lanes(handle):
        counts += (await collect_children(handle, folder, _Stages)).counts
    return counts


class _Stages:
    """Counts messages by their batch."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def take(self, names: list[str]) -> None:
        """Count the messages of names that belong to a batch."""
        for name in names:
            if has_field(name, "b") and (stage := batch_lock_of(name)) is not None:
                self.counts[stage] += messages_in(name)
