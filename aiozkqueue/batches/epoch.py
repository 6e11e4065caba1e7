"""A ledger's epoch: it decides which process may change the ledger, and makes each change exactly once."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import ClaimLostError
from aiozkqueue.layout import LockRecord
from aiozkqueue.operations.ledger_pages import owner_of_ledger, path_of_ledger
from aiozkqueue.zookeeper import (
    BadVersionError,
    Check,
    Create,
    Delete,
    MultiError,
    NodeExistsError,
    NoNodeError,
    SetData,
    apply_until_answered,
)

from .records import LedgerRecord

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Node, Operation, Stat, ZooKeeperError


#: The prefix of the names of manifests.
BATCH: Final = "batch-"


async def deletion_of(state: QueueState) -> ClaimLostError | None:
    """Return the error of a stream whose queue was deleted; None if the queue exists. Raises: AccessDeniedError."""
    if await state.exists():
        return None
    return ClaimLostError(
        f"queue {state.name!r} was deleted, and with it the batches of its streams; this query must stop. Create the "
        "queue again, as any put does, and start the query with a new checkpoint or with failOnDataLoss=false"
    )


class RefusedError(Exception):
    """An operation of a change was refused."""

    def __init__(self, index: int, error: ZooKeeperError) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


class Epoch:
    """One process's hold on a group's ledger."""

    def __init__(self, handle: QueueHandle[Runtime], group: str) -> None:
        self._runtime = handle.runtime
        self._zookeeper = handle.zookeeper
        self._state = handle.state
        self._group = group
        self._path = path_of_ledger(handle.paths, group)
        self._epoch: int | None = None
        self._created = 0  # the transaction that created the group's znode
        self._record = LedgerRecord()

    async def _take_over(self) -> None:
        """Begin an epoch, unless this process has one. Raises: ClaimLostError: the queue has been deleted."""
        while self._epoch is None:
            await self._zookeeper.ensure(self._state.paths.ledgers)
            self._epoch = await self._try_to_take_over()
            if self._epoch is None and (deleted := await deletion_of(self._state)) is not None:
                raise deleted

    async def _try_to_take_over(self) -> int | None:
        """Write to the group's znode; return its version, or None if another write preceded or followed."""
        zookeeper = self._zookeeper
        await zookeeper.sync(self._path)
        try:
            node = await zookeeper.read(self._path)
        except NoNodeError:
            node = None
        known = LedgerRecord() if node is None else LedgerRecord.decode(node.data)
        identity, run = (f"{self._runtime.random.getrandbits(4 * digits):0{digits}x}" for digits in (32, 16))
        self._record = known._replace(identity=known.identity or identity, run=run)
        data = self._encoded(self._record)
        write = Create(self._path, data) if node is None else SetData(self._path, data, node.stat.version)
        try:
            await apply_until_answered(zookeeper, [write])
        except MultiError as refusal:
            if not isinstance(refusal.error, NodeExistsError | NoNodeError | BadVersionError):
                raise refusal.error from refusal
        version = 0 if node is None else node.stat.version + 1
        written = await self._read_if_ours(data, version)
        if written is None:
            return None
        self._created = written.stat.czxid
        return version

    async def _read_if_ours(self, data: bytes, version: int) -> Node | None:
        """Return the group's znode if its last write is one of this process, which gave it this version.

        The data alone does not show that: a release writes it again.
        """
        await self._zookeeper.sync(self._path)
        try:
            node = await self._zookeeper.read(self._path)
        except NoNodeError:
            return None
        return node if (node.data, node.stat.version) == (data, version) else None

    def _encoded(self, record: LedgerRecord) -> bytes:
        return record.encode({"client": self._runtime.ids.client, **json.loads(self._runtime.about or b"{}")})

    async def _note(self, record: LedgerRecord, change: Operation) -> None:
        """Write the ledger's record together with a change. This begins another epoch, which is ours too.

        Raises: ClaimLostError.
        """
        data, check = self._encoded(record), self._check()
        write = SetData(check.path, data, check.version)
        version = check.version + 1

        async def applied(refusal: MultiError) -> bool:
            return refusal.index == 0 and await self._read_if_ours(data, version) is not None

        try:
            await apply_until_answered(self._zookeeper, [write, change], applied=applied)
        except MultiError as refusal:
            raise await self._lost() if refusal.index == 0 else refusal.error from refusal
        self._epoch, self._record = version, record

    async def _lost(self) -> ClaimLostError:
        """Return the error of an epoch that another process, or the deletion of the queue, has ended."""
        return await deletion_of(self._state) or ClaimLostError(
            f"queue {self._state.name!r}: the ledger of stream {self._group!r} has been taken over or released; this "
            "process must stop"
        )

    def _check(self) -> Check:
        assert self._epoch is not None  # noqa: S101 - `_take_over` comes first
        return Check(self._path, self._epoch)

    async def _change(self, operations: Sequence[Operation], done: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Apply a change of the epoch.

        A refusal after a lost reply may mean that the change was applied: ``done`` returns whether it was. None: a
        second copy is not refused because of the first.

        Raises: ClaimLostError; RefusedError: one of the operations was refused.
        """

        async def applied(refusal: MultiError) -> bool:
            return refusal.index > 0 and done is not None and await done()

        try:
            await apply_until_answered(self._zookeeper, [self._check(), *operations], applied=applied)
        except MultiError as refusal:
            if refusal.index == 0:
                raise await self._lost() from refusal
            raise RefusedError(refusal.index - 1, refusal.error) from refusal

    async def _delete(self, *paths: str) -> None:
        """Delete all of these znodes, or none. Raises: as `_change`."""
        await self._change([Delete(path) for path in paths], partial(self._gone, paths[0]))

    async def _require_epoch(self) -> None:
        """Raise ClaimLostError if another process has taken the ledger over."""
        await self._change([])

    async def _hold(self) -> Stat:
        """Return the stat of the group's znode.

        The znode of a queue that was deleted and created again may have the same version.

        Raises: ClaimLostError: another process has taken the ledger over, or the queue was deleted.
        """
        await self._zookeeper.sync(self._path)
        stat = await self._zookeeper.exists(self._path)
        if stat is None or (stat.version, stat.czxid) != (self._epoch, self._created):
            raise await self._lost()
        return stat

    async def _exists(self, path: str) -> bool:
        return await self._zookeeper.exists(path) is not None

    async def _gone(self, path: str) -> bool:
        return await self._zookeeper.exists(path) is None

    def _manifest(self, number: int) -> str:
        return f"{self._path}/{BATCH}{number:010d}"

    def _lock_of(self, number: int) -> LockRecord:
        return LockRecord(f"{self._group}/{number}", owner_of_ledger(self._group))
