"""A ledger's epoch: it decides which process may change the ledger, and makes each change exactly once."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.errors import ClaimLostError, InvalidOptionError, NotCommittedError, NotFoundError
from aiozkqueue.operations.contradictions import MOST_TRIES, contradiction
from aiozkqueue.operations.ledger_pages import path_of_ledger
from aiozkqueue.operations.similar import absence
from aiozkqueue.runtime.acl_errors import access_denied
from aiozkqueue.zookeeper import (
    BadVersionError,
    Check,
    Create,
    Delete,
    MultiError,
    NoAuthError,
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
    from aiozkqueue.zookeeper import Node, Operation, Stat, ZooKeeper, ZooKeeperError


async def deletion_of(state: QueueState) -> ClaimLostError | None:
    """Return the error of a stream whose queue was deleted; None if the queue exists. Raises: AccessDeniedError."""
    if await state.exists():
        return None
    return ClaimLostError(
        f"queue {state.name!r} was deleted, and with it the batches of its streams; this query must stop. Create the "
        "queue again, as any put does, and start the query with a new checkpoint or with failOnDataLoss=false"
    )


def refuse_order(state: QueueState) -> None:
    """Refuse an open queue whose messages have an order, which batches do not keep. Raises: InvalidOptionError."""
    if state.config.grouped or state.config.collapse:
        what = "keeps an order or collapses messages, which a stream would not"
        msg = f"queue {state.name!r} {what}: use consumers to take from it"
        raise InvalidOptionError(msg)


class RefusedError(NotCommittedError):
    """An operation of a change was refused."""

    def __init__(self, queue: str, index: int, error: ZooKeeperError) -> None:
        advice = f"; {error.advice}" if isinstance(error, NoAuthError) else ""
        super().__init__(f"queue {queue!r}: {error}{advice}; nothing was applied")
        self.index = index
        self.error = error


class Epoch:
    """One process's hold on a group's ledger."""

    def __init__(self, handle: QueueHandle[Runtime], group: str) -> None:
        self.handle: QueueHandle[Runtime] = handle
        self.runtime: Runtime = handle.runtime
        self.zookeeper: ZooKeeper = handle.zookeeper
        self.state: QueueState = handle.state
        self.group: str = group
        self.path: str = path_of_ledger(handle.paths, group)
        self.record: LedgerRecord = LedgerRecord()
        self._version: int | None = None
        self._created = 0  # the transaction that created the group's znode

    @property
    def began(self) -> bool:
        """Whether this process has taken the ledger over."""
        return self._version is not None

    async def open(self) -> None:
        """Take the ledger over, unless that has been done: earlier processes can then change nothing.

        Raises: NotFoundError; InvalidOptionError: the queue has an order, which batches do not keep.
        """
        if self.began:
            return
        await self.admit()
        await self.take_over()

    async def admit(self) -> None:
        """Check that the queue exists, and read its configuration. Raises: as `open`."""
        if not await self.state.exists():
            raise NotFoundError(await absence(self.runtime, self.state.name))
        await self.reopen()

    async def read_node(self) -> Node | None:
        """Return the group's znode without taking the ledger over; None if it does not exist."""
        await self.zookeeper.sync(self.path)
        try:
            return await self.zookeeper.read(self.path)
        except NoNodeError:
            return None

    async def reopen(self) -> None:
        """Read the configuration, as `refresh`. Raises: InvalidOptionError: the queue has an order."""
        await self.refresh()
        refuse_order(self.state)

    async def refresh(self) -> None:
        """Read the configuration. Raises: NotFoundError; ClaimLostError: the queue was deleted since `open`."""
        self.state.invalidate()
        try:
            await self.state.open()
        except NotFoundError as error:
            if not self.began:
                raise
            raise await self._lost() from error

    async def take_over(self) -> None:
        """Begin an epoch, unless this process has one.

        Raises: ClaimLostError: the queue has been deleted; NotCommittedError: the servers contradict each other.
        """
        tries = 0
        while self._version is None:
            if (tries := tries + 1) > MOST_TRIES:
                raise contradiction(self.state.name, self.path)
            await self.zookeeper.ensure(self.state.paths.ledgers)
            self._version = await self._try_to_take_over()
            if self._version is None and (deleted := await deletion_of(self.state)) is not None:
                raise deleted

    async def _try_to_take_over(self) -> int | None:
        """Write to the group's znode; return its version, or None if another write preceded or followed."""
        node = await self.read_node()
        known = LedgerRecord() if node is None else LedgerRecord.decode(node.data)
        identity, run = (f"{self.runtime.random.getrandbits(4 * digits):0{digits}x}" for digits in (32, 16))
        self.record = known._replace(identity=known.identity or identity, run=run)
        data = self._encoded(self.record)
        write = Create(self.path, data) if node is None else SetData(self.path, data, node.stat.version)
        try:
            await apply_until_answered(self.zookeeper, [write])
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
        node = await self.read_node()
        return node if node is not None and (node.data, node.stat.version) == (data, version) else None

    def _encoded(self, record: LedgerRecord) -> bytes:
        return record.encode({"client": self.runtime.ids.client, **json.loads(self.runtime.about or b"{}")})

    async def note(self, record: LedgerRecord, change: Operation) -> None:
        """Write the ledger's record together with a change. This begins another epoch, which is ours too.

        Raises: ClaimLostError.
        """
        data, check = self._encoded(record), self.check()
        write = SetData(check.path, data, check.version)
        version = check.version + 1

        async def applied(refusal: MultiError) -> bool:
            return refusal.index == 0 and await self._read_if_ours(data, version) is not None

        try:
            await apply_until_answered(self.zookeeper, [write, change], applied=applied)
        except MultiError as refusal:
            raise await self._lost() if refusal.index == 0 else refusal.error from refusal
        self._version, self.record = version, record

    async def _lost(self) -> ClaimLostError:
        """Return the error of an epoch that another process, or the deletion of the queue, has ended."""
        return await deletion_of(self.state) or ClaimLostError(
            f"queue {self.state.name!r}: the ledger of stream {self.group!r} has been taken over or released; this "
            "process must stop"
        )

    def check(self) -> Check:
        """Return the operation that asserts this epoch."""
        assert self._version is not None  # noqa: S101 - `take_over` comes first
        return Check(self.path, self._version)

    async def change(self, operations: Sequence[Operation], done: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Apply a change of the epoch.

        A refusal after a lost reply may mean that the change was applied: ``done`` returns whether it was. None: a
        second copy is not refused because of the first.

        Raises: ClaimLostError; RefusedError: one of the operations was refused.
        """

        async def applied(refusal: MultiError) -> bool:
            return refusal.index > 0 and done is not None and await done()

        try:
            await apply_until_answered(self.zookeeper, [self.check(), *operations], applied=applied)
        except MultiError as refusal:
            if refusal.index == 0:
                raise await self._lost() from refusal
            raise RefusedError(self.state.name, refusal.index - 1, refusal.error) from refusal

    async def delete(self, *paths: str) -> None:
        """Delete all of these znodes, or none. Raises: as `change`."""
        await self.change([Delete(path) for path in paths], partial(self.gone, paths[0]))

    async def require(self) -> None:
        """Raise ClaimLostError if another process has taken the ledger over. This writes nothing."""
        await self.change([])

    async def hold(self) -> Stat:
        """Return the stat of the group's znode.

        The znode of a queue that was deleted and created again may have the same version.

        Raises: ClaimLostError: another process has taken the ledger over, or the queue was deleted.
        """
        await self.zookeeper.sync(self.path)
        stat = await self.zookeeper.exists(self.path)
        if stat is None or (stat.version, stat.czxid) != (self._version, self._created):
            raise await self._lost()
        return stat

    async def exists(self, path: str) -> bool:
        """Whether a znode exists: as ``done`` of `change`."""
        return await self.zookeeper.exists(path) is not None

    async def gone(self, path: str) -> bool:
        """Whether a znode does not exist: as ``done`` of `change`."""
        return await self.zookeeper.exists(path) is None

    def reason(self, refusal: RefusedError) -> Exception:
        """Return the error to raise for an operation that was refused, and cannot be tried again."""
        return access_denied(self.state.name, refusal.error) if isinstance(refusal.error, NoAuthError) else refusal
