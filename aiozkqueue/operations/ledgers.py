"""The ledgers of a queue for operators: a list, and the release of an abandoned one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aiozkqueue.layout import LockRecord
from aiozkqueue.layout.processes import ProcessInfo
from aiozkqueue.moments import moment_at
from aiozkqueue.operations.ledger_pages import (
    Entry,
    Manifest,
    absence_of,
    count_messages,
    is_page,
    owner_of_ledger,
    path_of_ledger,
    read_page,
    untouched_records,
)
from aiozkqueue.runtime.acl_errors import access_denied, translate_denials
from aiozkqueue.zookeeper import (
    BadVersionError,
    Check,
    Delete,
    MultiError,
    NoAuthError,
    NoNodeError,
    SetData,
    apply_until_answered,
    below,
    read_pages,
    until_answered,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from aiozkqueue.errors import AccessDeniedError
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Node, Operation, ZooKeeper

#: Locks read at a time.
TOGETHER: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerInfo:
    """The messages of a queue that a stream holds."""

    group: str
    batches: int
    """The number of batches that have not been acknowledged."""
    messages: int
    """The number of messages in them, which no other consumer can take."""
    client: str
    """The session that took it over last, and its host and process."""
    host: str
    pid: int
    changed: datetime
    """The time of that, or of the last batch begun, in ZooKeeper's time."""


async def ledgers(handle: QueueHandle[Runtime]) -> list[LedgerInfo]:
    """Read each used ledger of a queue.

    Raises: AccessDeniedError; PayloadError: a page of a ledger does not decode.
    """
    with translate_denials(handle.name):
        groups = sorted(await below(handle.zookeeper, handle.paths.ledgers))
        nodes = await read_pages(handle.zookeeper, [f"{handle.paths.ledgers}/{group}" for group in groups])
        return [
            await _read_ledger(handle.zookeeper, f"{handle.paths.ledgers}/{group}", group, node)
            for group, node in zip(groups, nodes, strict=True)
            if node is not None
        ]


async def _read_ledger(zookeeper: ZooKeeper, path: str, group: str, node: Node) -> LedgerInfo:
    manifests = await below(zookeeper, path)
    messages, changed = 0, node.stat.mtime
    for name in manifests:
        stat = await zookeeper.exists(f"{path}/{name}")
        changed = max(changed, 0 if stat is None else stat.ctime)
        for page in filter(is_page, await below(zookeeper, f"{path}/{name}")):
            with suppress(NoNodeError):  # it has been acknowledged or released in the meantime
                messages += count_messages(await read_page(zookeeper.read, f"{path}/{name}/{page}"))
    process = ProcessInfo.decode(node.data)
    return LedgerInfo(
        group=group,
        batches=len(manifests),
        messages=messages,
        client=process.client,
        host=process.host,
        pid=process.pid,
        changed=moment_at(changed),
    )


async def count_ledgers(handle: QueueHandle[Runtime], unreadable: list[AccessDeniedError]) -> int:
    """Count the ledgers that hold a batch; add the errors of those that this user may not read to ``unreadable``.

    Raises: AccessDeniedError: the ledgers may not be listed.
    """
    held = 0
    with translate_denials(handle.name):
        groups = await below(handle.zookeeper, handle.paths.ledgers)
    for group in groups:
        try:
            stat = await handle.zookeeper.exists(f"{handle.paths.ledgers}/{group}")
        except NoAuthError as error:
            unreadable.append(access_denied(handle.name, error))
        else:
            held += stat is not None and stat.num_children > 0
    return held


async def release(handle: QueueHandle[Runtime], group: str) -> int:
    """Release the messages of a ledger; return how many. The stream that used it fails at its next change.

    A batch that is marked as done stays as it is: `Ledger.finish` removes it.

    Raises: NotFoundError: there is no such ledger; AccessDeniedError; PayloadError: a page of it does not decode.
    """
    with translate_denials(handle.name):
        return await _Releasing(handle.zookeeper, handle.state, group).run()


class _RefusedError(Exception):
    """A change was refused: the data has changed."""


class _Releasing:
    """The release of a ledger. Each step is repeatable: after a lost reply, the data is read again."""

    def __init__(self, zookeeper: ZooKeeper, state: QueueState, group: str) -> None:
        self._zookeeper = zookeeper
        self._state = state
        self._group = group
        self._path = path_of_ledger(state.paths, group)
        self._epoch = 0
        self._record: bytes | None = None  # as this release has written it

    async def run(self) -> int:
        """Release all messages; return how many."""
        await self._take_over()
        return sum([await self._release(name) for name in sorted(await below(self._zookeeper, self._path))])

    async def _release(self, name: str) -> int:
        """Release the messages of a batch and remove it, unless it is marked as done; return how many.

        A stream that takes the ledger over meanwhile may add pages, so the batch is listed again after its pages are
        gone. ZooKeeper refuses to delete the batch while a page is left.
        """
        manifest, released = f"{self._path}/{name}", 0
        while (unmarked := await self._unmarked(manifest)) is not None:
            names = await below(self._zookeeper, manifest)
            if pages := sorted(filter(is_page, names)):
                released += sum([await self._release_page(manifest, f"{manifest}/{page}") for page in pages])
                continue
            marks = [Delete(f"{manifest}/{mark}") for mark in names]
            with suppress(_RefusedError):
                for start in range(0, len(marks), TOGETHER):
                    await self._change(unmarked, *marks[start : start + TOGETHER])
                await self._change(unmarked, Delete(manifest))
        return released

    async def _take_over(self) -> None:
        """Begin another epoch. Raises: NotFoundError."""
        await self._zookeeper.sync(self._path)  # a lagging server may not know a new ledger
        try:
            self._epoch = await until_answered(self._zookeeper, self._next_epoch)
        except (NoNodeError, MultiError) as error:
            if isinstance(error, MultiError) and not isinstance(error.error, NoNodeError):
                raise error.error from error
            raise absence_of(self._group, self._state.name) from error

    async def _next_epoch(self) -> int:
        while True:
            node = await self._zookeeper.read(self._path)
            if node.data == self._record:
                return node.stat.version  # only other releases have written it since; both continue in one epoch
            try:
                (stat,) = await self._zookeeper.multi([SetData(self._path, node.data, node.stat.version)])
            except MultiError as refusal:
                if isinstance(refusal.error, BadVersionError):
                    continue  # the record of a stream that has written to it since must stay
                raise
            self._record = node.data
            return getattr(stat, "version", -1)

    async def _unmarked(self, manifest: str) -> Check | None:
        """Return a check that a batch is not marked as done; None if it is, or if it does not exist."""
        try:
            node = await self._zookeeper.read(manifest)
        except NoNodeError:
            return None
        return None if Manifest.decode(node.data).done else Check(manifest, node.stat.version)

    async def _release_page(self, manifest: str, page: str) -> int:
        """Remove a page and the locks that it names, unless its batch is done; return the number of messages released.

        The record of a bundle goes with the lock, so that consumers claim the bundle as one that was never claimed.
        """
        paths, count = self._state.paths, 0
        wakeup = SetData(paths.items, b"")  # wakes idle consumers
        while True:
            # A stream that takes the ledger over meanwhile may begin to acknowledge the batch.
            unmarked = await self._unmarked(manifest)
            if unmarked is None:
                return 0
            try:
                entries = await read_page(self._zookeeper.read, page)
            except NoNodeError:  # by a request whose reply was lost, or by another operator
                return count
            forced_version, ours = await self._held(entries)
            count = count_messages(ours)
            locks = [Delete(paths.lock(entry.id)) for entry in ours]
            untouched = await untouched_records(self._zookeeper, paths, ours)
            records = [Delete(record, version) for record, version in untouched.items()]
            # A lock that was forced open since may now belong to another client, and no version shows that.
            read_forced_version = Check(paths.locks, forced_version)
            marks = [Delete(f"{page}/{name}") for name in await below(self._zookeeper, page)]
            with suppress(_RefusedError):
                await self._change(unmarked, read_forced_version, *locks, *records, *marks, Delete(page), wakeup)
                return count

    async def _held(self, entries: Sequence[Entry]) -> tuple[int, list[Entry]]:
        """Return those of these entries that this ledger has locked, and their folder's version before that read.

        Raises: NotFoundError: the queue is being deleted.
        """
        try:
            folder = await self._zookeeper.read(self._state.paths.locks)
        except NoNodeError as error:
            raise absence_of(self._group, self._state.name) from error
        ours: list[Entry] = []
        for start in range(0, len(entries), TOGETHER):
            some = entries[start : start + TOGETHER]
            nodes = await self._zookeeper.read_many([self._state.paths.lock(entry.id) for entry in some])
            for entry, node in zip(some, nodes, strict=True):
                if node is not None and LockRecord.decode(node.data).owner == owner_of_ledger(self._group):
                    ours.append(entry)
        return folder.stat.version, ours

    async def _change(self, *operations: Operation) -> None:
        """Apply a change of this epoch. Raises: _RefusedError: it was not applied, or not by this request."""
        try:
            await apply_until_answered(self._zookeeper, [Check(self._path, self._epoch), *operations])
        except MultiError as refusal:
            if isinstance(refusal.error, NoAuthError):
                raise refusal.error from refusal
            if refusal.index == 0:  # it was taken over in the meantime, or a lost request of ours came late
                await self._take_over()
            raise _RefusedError from refusal
