"""Batches that several processes put together, and that become visible as a whole, exactly once.

A `BatchWriter` stands for one writer on one queue. Every process that puts for a batch joins it with `begin`, and
asserts the `Fence` in each multi. `complete` opens the batch: one multi marks it as complete and removes the one lock
that hides it, so all of it becomes available at once, and a repetition has no effect. `abort` raises the fence first,
so no further put succeeds and no task of its run can begin the batch, and then removes the items.
`operations.batch_writers` describes the stored data, and `candidates.batches` explains why incomplete batches are
invisible.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.errors import NotCommittedError
from aiozkqueue.layout import LockRecord, key_hash
from aiozkqueue.operations.batch_writers import (
    WriterRecord,
    clear_away,
    give_up,
    name_of_write,
    read_record,
    require_conflict,
    unlocking,
)
from aiozkqueue.operations.contradictions import MOST_TRIES, contradiction
from aiozkqueue.queue.commit.create_items import CreateItems
from aiozkqueue.queue.commit.register import FixedOperations
from aiozkqueue.queue.commit.write import AtomicWrite, JoinedParts
from aiozkqueue.runtime.acl_errors import access_denied
from aiozkqueue.runtime.deadline import AT_ONCE
from aiozkqueue.zookeeper import (
    Check,
    Create,
    Delete,
    MultiError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    SetData,
    apply_until_answered,
    below,
)

from .ended_writes import UNKNOWN_ORIGIN, AttemptOrigin, EndedWrites

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.put import Put
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.runtime.deadline import Deadline
    from aiozkqueue.zookeeper import Operation


class Fence(NamedTuple):
    """The version of a batch that every task of a writer asserts, and whose name is part of its items' names."""

    path: str
    version: int
    stage: str
    """The name of the batch in its lock and in its items' names."""
    lock: str
    """The path of the lock that hides the items."""

    def checks(self) -> tuple[Operation, ...]:
        """Return the checks that the batch is still pending, and that its items are hidden.

        The version alone does not show that: it starts again when the queue is deleted and created again.
        """
        return Check(self.path, self.version), Check(self.lock, -1)

    def staged(self, put: Put) -> Put:
        """Return the put with the batch's field in its name."""
        return put.with_field(self.stage)


class _Stored(NamedTuple):
    """A writer's record, and what a change of it asserts."""

    record: WriterRecord | None
    version: int
    same_queue: Operation
    """Asserts that the queue was not deleted since: see `read_record`."""


class OvertakenError(NotCommittedError):
    """Another attempt at the same part of the batch has moved its progress."""


class FencedError(NotCommittedError):
    """The batch is no longer pending, or its writer's znode was written for another reason."""


def fenced_puts(
    transaction_id: str, puts: Sequence[Put], fence: Fence, progress: SetData, deadline: Deadline = AT_ONCE
) -> AtomicWrite:
    """Return the write that puts items of a pending batch together with the progress that records them.

    ``deadline`` limits the wait for capacity in a queue that is given a size after the write was sent. The write fails
    with a FencedError if the batch has ended, and with an OvertakenError if another attempt was faster.
    """
    is_pending = FixedOperations(fence.path, fence.checks(), lambda error: FencedError(f"{fence.path}: {error}"))
    recorded = FixedOperations(progress.path, (progress,), lambda error: OvertakenError(f"{progress.path}: {error}"))
    return AtomicWrite(transaction_id, JoinedParts((is_pending, recorded, CreateItems(puts, deadline))))


class BatchWriter:
    """One writer's batches into a queue."""

    def __init__(self, handle: QueueHandle[Runtime], name: str) -> None:
        """``name`` identifies the writer forever."""
        self._handle = handle
        self._runtime = handle.runtime
        self._zookeeper = handle.zookeeper
        self._state = handle.state
        self._name = name
        self._conflicts = 0  # refused changes in a row
        self.writer: str = key_hash(name)
        self.path: str = f"{handle.paths.sinks}/{self.writer}"
        """The writer's znode; its parts store their progress below it."""

    async def begin(self, batch: int, run: str, made: AttemptOrigin = UNKNOWN_ORIGIN) -> Fence | None:
        """Begin a batch, or join it; return None if it or a later one is complete.

        ``run`` identifies one attempt at the whole batch: a process that joins the batch of another run takes it over,
        with its stored items. A run that was replaced, or whose batch was discarded, cannot begin it again. The origin
        of ``made`` is another key to find the batch by (`batch_writers.began_by`).

        Raises: NotCommittedError: the batch has been discarded, or a later one has begun. Also as `QueueState.open`.
        """
        while True:
            await self._state.admit_pending_batches()
            admitted = self._state.snapshot.check  # consumers of a queue that is created again do not know of batches
            stored = await self._read()
            record = stored.record
            if record is not None and record.batch >= batch:
                if batch <= record.last_complete:
                    return None
                self._require_latest(batch, record)
                if record.refuses(run):
                    raise self._given_up(batch)
                if record.stage is not None and record.run == run:
                    return self._fence(stored.version, record.stage)
            fresh = [admitted]
            if made.moment or (record is None and self._name == name_of_write(run)):
                ended = await EndedWrites.read(self._handle)
                if self.writer in ended or ended.has_failed(batch, made):
                    raise self._given_up(batch)
                fresh.append(ended.unchanged())
            await self._begin(stored, self._begun(batch, record, run, made.origin), fresh)

    async def is_complete(self, batch: int) -> bool:
        """Whether this batch, or a later one, is complete."""
        record = (await self._read()).record
        return record is not None and batch <= record.last_complete

    async def renew(self, batch: int, run: str) -> Fence | None:
        """Check whether a batch is still pending in this run after its fence refused a put; None: it is complete.

        Raises: NotCommittedError: it has been discarded, or belongs to another run, or its lock was removed manually.
        """
        unlocked: int | None = None
        while True:
            record, version, _ = await self._read()
            if record is not None and batch <= record.last_complete:
                return None
            if record is None or record.batch != batch or record.run != run or record.stage is None:
                raise self._given_up(batch)
            fence = self._fence(version, record.stage)
            if await self._zookeeper.exists(fence.lock) is not None:
                return fence
            if version == unlocked:
                raise self._given_up(batch)
            unlocked = version  # unless it has been completed or discarded since the read

    def _fence(self, version: int, stage: str) -> Fence:
        return Fence(self.path, version, stage, self._state.paths.lock(stage))

    async def complete(self, batch: int, stage: str | None = None) -> None:
        """Make a batch visible, all of it at once. A repetition has no effect.

        ``stage`` names the attempt at the batch that its tasks have put rows for (`Fence.stage`).

        Raises: NotCommittedError: that attempt has been discarded, also with its queue, or a later batch has begun.
        """
        while True:
            stored = await self._read()
            record = stored.record
            pending: str | None = None
            if record is not None:
                if batch <= record.last_complete:
                    break
                self._require_latest(batch, record)
                if record.batch == batch:
                    pending = record.stage
                    if pending is None:
                        raise self._given_up(batch)
            if stage not in {None, pending}:
                raise self._given_up(batch)
            opening: list[Operation] = []
            if pending is not None:
                wakeups = await self._wakeup_paths()
                opening = [*await unlocking(self._handle, pending), *(SetData(wakeup, b"") for wakeup in wakeups)]
            await self._change(stored, self._record(batch, record), *opening)
        await clear_away(self._handle, self.writer)

    async def _wakeup_paths(self) -> list[str]:
        """Return the znodes to write to so that every idle consumer wakes: the items, and a lane of each priority.

        A busy consumer only watches the lanes of more urgent priorities. A priority without a lane has no messages.
        """
        paths = self._state.paths
        existing = {"items", *(f"lanes/{name}" for name in await below(self._zookeeper, paths.lanes))}
        lanes = ["items"]
        for tier in self._state.snapshot.tiers:
            lanes += [lane for shard in tier.shard_lanes for lane in shard if lane in existing][:1]
        return [paths.at(lane) for lane in dict.fromkeys(lanes)]

    async def abort(self, batch: int, run: str | None = None) -> int:
        """Discard a batch, and remove its messages; return how many.

        ``run``: only if this run is writing it, and no other has taken it over. In any case, this run can no longer
        begin it, also if none of its tasks has begun it yet. Raises: as `QueueState.open`.
        """
        if run is not None:
            await self._end(batch, run)
            return await clear_away(self._handle, self.writer)
        if (await self._read()).record is None:
            return 0
        return await give_up(self._handle, self.writer, batch)

    async def _end(self, batch: int, run: str) -> None:
        """Make the record refuse each further begin of the batch by this run, and discard the batch if it is its own.

        Without a record, this creates one, and also the queue, as the late begin of a task would.
        """
        while True:
            await self._state.refresh()
            await self._state.open_or_create()
            stored = await self._read()
            record = stored.record
            if record is not None and (batch < record.batch or batch <= record.last_complete):
                return
            if record is None or batch > record.batch:
                after = replace(self._begun(batch, record, run), stage=None).discarded()
            elif run in record.ended:
                return
            else:
                after = record.discarded() if record.run == run else record.ending(run)
            await self._change(stored, after)

    async def parts(self) -> list[str]:
        """Return the records of the parts of its batches, by name."""
        return sorted(await below(self._zookeeper, self.path))

    async def forget_parts(self) -> None:
        """Remove the records of its parts, unless a batch is pending: another run has begun it, and needs them.

        Each multi asserts that no batch has begun since: without its record, a task that is tried again puts its rows
        a second time.
        """
        record, version, same_queue = await self._read()
        if record is None or record.stage is not None:
            return
        for name in await self.parts():
            await self._write([same_queue, Check(self.path, version), Delete(f"{self.path}/{name}")])

    async def forget(self) -> None:
        """Remove its record if no batch is pending. No late task of its write can begin it again."""
        while True:
            await self.forget_parts()
            record, version, same_queue = await self._read()
            if record is None or record.stage is not None:
                return
            ended = await EndedWrites.read(self._handle)
            await self._write([same_queue, Delete(self.path, version), ended.adding(self.writer)])

    def _begun(self, batch: int, before: WriterRecord | None, run: str, origin: str = "") -> WriterRecord:
        """Return the record of a batch that this run begins or takes over."""
        if before is not None and before.batch == batch and before.stage is not None:
            return replace(before.ending(before.run), run=run, client=self._runtime.ids.client)
        last = -1 if before is None else before.last_complete
        ended = before.ending(before.run).ended if before is not None and before.batch == batch else ()
        stage = "b" + key_hash(f"{self._name} {batch} {self._runtime.ids.next()}")
        pending = replace(self._record(batch, before), stage=stage, complete=False, last=last, ended=ended)
        return replace(pending, run=run, origin=origin)

    async def _begin(self, stored: _Stored, after: WriterRecord, more: list[Operation]) -> None:
        """Try to begin a batch under a new name, or to take it over; the caller checks the result."""
        assert after.stage is not None  # noqa: S101 - `_begun` sets it
        if stored.record is None or stored.record.stage != after.stage:
            lock = LockRecord(after.stage, self._runtime.ids.client)
            more = [*more, Create(self._state.paths.lock(after.stage), lock.encode())]
        await self._change(stored, after, *more)

    async def _change(self, stored: _Stored, after: WriterRecord, *more: Operation) -> None:
        """Try to change the record; the caller checks the result."""
        if stored.record is None:
            await self._zookeeper.ensure(self._state.paths.sinks)
            await self._write([stored.same_queue, Create(self.path, after.encode()), *more])
        else:
            await self._write([stored.same_queue, SetData(self.path, after.encode(), stored.version), *more])

    def _require_latest(self, batch: int, record: WriterRecord) -> None:
        """Refuse a batch if a later one is pending or discarded: this one can be neither written nor skipped."""
        if record.batch > batch:
            msg = (
                f"queue {self._state.name!r}: batch {record.batch} of {self._name!r} has begun, and batch {batch} is "
                "not complete: it was discarded. Write the batches in the order of their numbers, one at a time"
            )
            raise NotCommittedError(msg)

    def _given_up(self, batch: int) -> NotCommittedError:
        return NotCommittedError(
            f"queue {self._state.name!r}: batch {batch} of {self._name!r} has been discarded, possibly with its "
            "queue, or another run is writing it"
        )

    def _record(self, batch: int, before: WriterRecord | None) -> WriterRecord:
        """Return the record of a batch that is complete."""
        aborted = () if before is None else before.aborted
        if before is not None and before.batch < batch and before.stage is not None:
            aborted = (*aborted, before.stage)  # no process will continue it
        return WriterRecord(name=self._name, batch=batch, aborted=aborted, client=self._runtime.ids.client)

    async def _read(self) -> _Stored:
        await self._zookeeper.sync(self._state.paths.base)
        node, same_queue = await read_record(self._handle, self.writer)
        if node is None:
            return _Stored(None, -1, same_queue)
        record = WriterRecord.decode(node.data)
        if record is None:
            msg = f"queue {self._state.name!r}: {self.path} does not decode; nothing was put"
            raise NotCommittedError(msg)
        return _Stored(record, node.stat.version, same_queue)

    async def _write(self, operations: Sequence[Operation]) -> None:
        """Apply a change or not; the caller checks the result.

        Raises: AccessDeniedError; NotCommittedError: the server refuses it for a reason other than a change of the
        data, or has refused many in a row.
        """
        try:
            await apply_until_answered(self._zookeeper, operations)
            self._conflicts = 0
        except MultiError as refusal:
            if isinstance(refusal.error, NoAuthError):
                raise access_denied(self._state.name, refusal.error) from refusal
            require_conflict(self._state.name, refusal)
            self._conflicts += 1
            if self._conflicts == MOST_TRIES:
                self._conflicts = 0
                raise contradiction(self._state.name, self.path) from refusal
            reconfigured = operations[refusal.index].path == self._state.paths.base
            if reconfigured or isinstance(refusal.error, NoNodeError | NodeExistsError):
                self._state.invalidate()
                await self._state.open_or_create()
