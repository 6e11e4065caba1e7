"""Items read without a claim, and changes to them: removal, dead-lettering, release by force.

A purge, a move or an acknowledgement by token ends an item without holding it. Each is a change based on data just
read: one multi that fails if any of the data has changed, or if it is sent a second time. An item that no client holds
is locked and unlocked by the change itself, which fails if another client claims it in the meantime.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, TypeVar

from aiozkqueue.errors import AccessDeniedError
from aiozkqueue.layout import AttemptRecord, LockRecord, MalformedError, decode, item_id, name_at
from aiozkqueue.layout.replies import asks_for_reply
from aiozkqueue.queue.candidates.groups import is_group, lock_ids
from aiozkqueue.queue.commit.conditional import Change
from aiozkqueue.queue.commit.dispositions import REMOVED, create_dead_letter
from aiozkqueue.queue.commit.unique_keys import freed_with
from aiozkqueue.queue.state.claim import Claim, EphemeralBudget
from aiozkqueue.runtime.acl_errors import translate_denials
from aiozkqueue.zookeeper import PAGE, Check, Create, Delete, SetData, read_pages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from aiozkqueue.layout import IdSource, StoredConfig
    from aiozkqueue.queue.commit.dispositions import Disposition
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.queue.state.snapshot import QueueSnapshot
    from aiozkqueue.runtime.clock import ServerClock
    from aiozkqueue.zookeeper import Node, Operation

P = TypeVar("P")
R = TypeVar("R")

#: Approximate maximum bytes of items read at a time, and never more than `PAGE` items.
PAGE_BYTES = 4 * 1024 * 1024
#: Items in the first read, while their size is unknown.
FIRST_PAGE = 4

Unreadable: TypeAlias = "dict[str, AccessDeniedError]"
"""Places whose item, lock or attempt record this user may not read."""


class Remover(Protocol):
    """The parts of a session that a removal needs; `SessionCore` has them."""

    @property
    def ids(self) -> IdSource:
        """The source of the id of the removal's lock."""
        ...

    @property
    def server_clock(self) -> ServerClock:
        """The clock for the time of the removal."""
        ...


class ItemSnapshot(NamedTuple):
    """An item with its lock and attempt record, as read."""

    place: str
    item: Node
    lock: Node | None
    meta: Node | None
    lock_id: str
    """The id in the lock's name: of the message, or of its group."""
    known: QueueSnapshot
    """The configuration that says which lock is the item's. A lock from a time with another order is its lock too."""

    @property
    def id(self) -> str:
        """The message's id."""
        return item_id(self.name) if is_group(self.lock_id) else self.lock_id

    @property
    def name(self) -> str:
        """The item's name."""
        return name_at(self.place)

    @property
    def body(self) -> bytes:
        """The payload; all stored bytes if the envelope does not decode."""
        try:
            return decode(self.item.data)[1]
        except MalformedError:
            return self.item.data

    @property
    def end(self) -> int | None:
        """The time when the lock expires, ms; None if it ends with a session, or if there is no lock."""
        return None if self.lock is None else LockRecord.decode(self.lock.data).end

    def held(self, now: int) -> bool:
        """Whether a transaction, a delivery, or an unexpired lease holds it."""
        return self.lock is not None and LockRecord.decode(self.lock.data).held(now)

    @property
    def in_flight(self) -> bool:
        """Whether a transaction or delivery holds it."""
        return self.lock is not None and self.end is None


async def find(
    handle: QueueHandle[Runtime], places: Sequence[str], unreadable: Unreadable | None = None
) -> list[ItemSnapshot]:
    """Read the items at these places, leaving out empty places. Raises: as `find_pages`."""
    return [snapshot async for page in find_pages(handle, places, unreadable) for snapshot in page]


async def find_pages(
    handle: QueueHandle[Runtime],
    places: Sequence[str],
    unreadable: Unreadable | None = None,
    config: StoredConfig | None = None,
) -> AsyncIterator[list[ItemSnapshot]]:
    """Read as `find` does, in pages of approximately `PAGE_BYTES`.

    With ``unreadable``, record in it the places that this user may not read, and read the others regardless. ``config``
    overrides the known configuration, for a queue that need not be open.

    Raises: AccessDeniedError: without ``unreadable``.
    """

    async def read(page: Sequence[str]) -> list[ItemSnapshot]:
        try:
            return await _read_page(handle, page, config)
        except AccessDeniedError:
            if unreadable is None:
                raise
        snapshots: list[ItemSnapshot] = []
        for place in page:
            try:
                snapshots += await _read_page(handle, [place], config)
            except AccessDeniedError as error:
                unreadable[place] = error
        return snapshots

    async for _, snapshots in pages(places, read, bytes_of_items):
        yield snapshots


async def _read_page(
    handle: QueueHandle[Runtime], page: Sequence[str], config: StoredConfig | None
) -> list[ItemSnapshot]:
    paths: list[str] = []
    known, ids = handle.state.snapshot, [possible_locks(handle.state, name_at(place), config) for place in page]
    for place, possible in zip(page, ids, strict=True):
        message_id = handle.state.item_id(name_at(place))
        paths += (handle.paths.at(place), handle.paths.meta(message_id), *map(handle.paths.lock, possible))
    nodes = iter(await read_all(handle, paths))
    snapshots: list[ItemSnapshot] = []
    for place, possible in zip(page, ids, strict=True):
        item, meta, locks = next(nodes), next(nodes), islice(nodes, len(possible))
        lock_id, lock = lock_of(name_at(place), list(zip(possible, locks, strict=True)))
        if item is not None:
            snapshots.append(ItemSnapshot(place, item, lock, meta, lock_id, known))
    return snapshots


def possible_locks(state: QueueState, name: str, config: StoredConfig | None = None) -> list[str]:
    """Return the id in the lock of an item, and then the ids of locks from a time when the queue had another order.

    ``config`` overrides the known one. Raises: MalformedError.
    """
    own = state.lock_id_of(name, config)
    item = None if (config or state.config).ordered is None else state.parse_item(name)
    return [own] if item is None else [own, *(lock_id for lock_id in lock_ids(item) if lock_id != own)]


def lock_of(name: str, locks: Sequence[tuple[str, Node | None]]) -> tuple[str, Node | None]:
    """Return the lock of an item, and its id; an older timed lock of its group or queue may be another message's."""
    own, *older = locks
    for lock_id, lock in older if own[1] is None else ():
        record = None if lock is None else LockRecord.decode(lock.data)
        if record is not None and (not is_group(lock_id) or record.end is None or record.claim == item_id(name)):
            return lock_id, lock
    return own


async def item_pages(handle: QueueHandle[Runtime], places: Sequence[str]) -> AsyncIterator[list[ItemSnapshot]]:
    """Read as `find_pages` does, but only the items, not their locks. Raises: AccessDeniedError."""

    async def read(page: Sequence[str]) -> list[ItemSnapshot]:
        nodes = await read_all(handle, [handle.paths.at(place) for place in page])
        return [
            ItemSnapshot(place, item, None, None, handle.state.lock_id_of(name_at(place)), handle.state.snapshot)
            for place, item in zip(page, nodes, strict=True)
            if item is not None
        ]

    async for _, snapshots in pages(places, read, bytes_of_items):
        yield snapshots


async def pages(
    wanted: Sequence[P], read: Callable[[Sequence[P]], Awaitable[R]], weigh: Callable[[R], int], first: int = FIRST_PAGE
) -> AsyncIterator[tuple[Sequence[P], R]]:
    """Read in pages of approximately `PAGE_BYTES`; yield each with its result, whose bytes ``weigh`` returns."""
    start, together, size = 0, first, 0
    while start < len(wanted):
        page = wanted[start : start + together]
        result = await read(page)
        yield page, result
        start += len(page)
        size += weigh(result)
        together = max(1, min(PAGE, PAGE_BYTES * start // max(1, size)))


def bytes_of_items(snapshots: Sequence[ItemSnapshot]) -> int:
    """Return the total size of items."""
    return sum(len(snapshot.item.data) for snapshot in snapshots)


async def read_all(handle: QueueHandle[Runtime], paths: Sequence[str]) -> list[Node | None]:
    """Read many znodes, a page at a time. Raises: AccessDeniedError."""
    with translate_denials(handle.name):
        return await read_pages(handle.zookeeper, paths)


ReadSet: TypeAlias = "list[Node | None] | AccessDeniedError"
"""A set of znodes as read; the error if this user may not read one of them."""


async def read_sets(handle: QueueHandle[Runtime], sets: Sequence[Sequence[str]]) -> list[ReadSet]:
    """Read sets of znodes; a set with a znode that this user may not read is replaced by the error."""
    return [found async for _, page in set_pages(handle, sets) for found in page]


async def set_pages(
    handle: QueueHandle[Runtime], sets: Sequence[Sequence[str]]
) -> AsyncIterator[tuple[Sequence[Sequence[str]], list[ReadSet]]]:
    """Read as `read_sets` does, in pages of approximately `PAGE_BYTES`; yield each with its sets."""

    async def read(page: Sequence[Sequence[str]]) -> list[ReadSet]:
        try:
            nodes = iter(await read_all(handle, [path for paths in page for path in paths]))
        except AccessDeniedError:
            return [await _read_set(handle, paths) for paths in page]
        return [list(islice(nodes, len(paths))) for paths in page]

    async for page in pages(sets, read, _bytes_of_sets):
        yield page


def _bytes_of_sets(sets: Sequence[ReadSet]) -> int:
    return sum(len(node.data) for found in sets if isinstance(found, list) for node in found if node is not None)


async def _read_set(handle: QueueHandle[Runtime], paths: Sequence[str]) -> ReadSet:
    try:
        return await read_all(handle, paths)
    except AccessDeniedError as error:
        return error


def removal(runtime: Remover, state: QueueState, snapshot: ItemSnapshot, disposition: Disposition) -> Change:
    """Return the removal of an item, held or not, with all that belongs to it; ``disposition`` describes the end."""
    paths = state.paths
    if snapshot.lock is None:
        lock = LockRecord(runtime.ids.next(), runtime.ids.client).encode()
        lock_path = paths.lock(snapshot.lock_id)
        operations: list[Operation] = [Create(lock_path, lock), Delete(lock_path)]
        if snapshot.meta is None and state.config.counts:
            # A client may have claimed it, recorded an attempt and died since the read.
            operations += [Create(paths.meta(snapshot.id)), Delete(paths.meta(snapshot.id))]
    else:
        operations = unlocking(state, snapshot)
    operations.append(Delete(paths.at(snapshot.place), snapshot.item.stat.version))
    if snapshot.meta is not None:
        operations.append(Delete(paths.meta(snapshot.id), snapshot.meta.stat.version))
    if state.dialect is None:
        operations += freed_with(paths, snapshot.name)
    recorded = state.snapshot.end_hooks or (disposition.answer and asks_for_reply(snapshot.item.data))
    return Change(state, operations, (as_claim(state, snapshot, runtime), disposition) if recorded else None)


def as_configured(snapshot: ItemSnapshot, change: Change) -> Change:
    """Return the change of an item with a check that the configuration is the one known when the item was read.

    Another configuration may say that another lock is the item's, or that its end is recorded.
    """
    return change._replace(operations=[snapshot.known.check, *change.operations])


def shortening(runtime: Remover, state: QueueState, snapshot: ItemSnapshot, data: bytes) -> Change:
    """Return the replacement of the bytes of an item that no session holds.

    Its record of attempts is removed, because it counts those of its first message.
    """
    path, version = state.paths.at(snapshot.place), snapshot.item.stat.version
    operations = removal(runtime, state, snapshot, REMOVED).operations
    return Change(
        state,
        [SetData(path, data, version) if operation == Delete(path, version) else operation for operation in operations],
    )


def dead_lettering(runtime: Remover, state: QueueState, snapshot: ItemSnapshot, disposition: Disposition) -> Change:
    """Return the dead-lettering of an item, held or not; ``disposition`` describes the end."""
    change = removal(runtime, state, snapshot, disposition)
    dead = create_dead_letter(as_claim(state, snapshot, runtime), disposition.reason, runtime.server_clock.now())
    return change._replace(operations=[*change.operations, dead])


def unlocking(state: QueueState, snapshot: ItemSnapshot) -> list[Operation]:
    """Return the operations that remove the item's lock, if there is one."""
    if snapshot.lock is None:
        return []
    paths = state.paths
    if is_group(snapshot.lock_id) and LockRecord.decode(snapshot.lock.data).claim != snapshot.id:
        return still_locked(state, snapshot)  # for an earlier message
    operations: list[Operation] = [Delete(paths.lock(snapshot.lock_id), snapshot.lock.stat.version)]
    if snapshot.end is not None:
        operations.append(Delete(paths.due_node(snapshot.end, snapshot.id)))
    return operations


def still_locked(state: QueueState, snapshot: ItemSnapshot) -> list[Operation]:
    """Return the checks that the group of a locked item still has the lock that was read.

    Another lock may have its version; an ended timed lock has no due node any more.
    """
    assert snapshot.lock is not None  # noqa: S101 - the caller has checked
    lock, paths = snapshot.lock, state.paths
    checks: list[Operation] = [Check(paths.lock(snapshot.lock_id), lock.stat.version)]
    if snapshot.end is not None:
        checks.append(Check(paths.due_node(snapshot.end, LockRecord.decode(lock.data).claim)))
    return checks


def opening(state: QueueState, snapshot: ItemSnapshot) -> Change:
    """Return the removal of the item's lock by force; the holder loses its claim, and idle consumers wake."""
    raised = SetData(state.paths.at(snapshot.place), snapshot.item.data, snapshot.item.stat.version)
    return Change(state, [*unlocking(state, snapshot), raised, SetData(state.paths.items, b"")])


def as_claim(state: QueueState, snapshot: ItemSnapshot, runtime: Remover) -> Claim:
    """Return a claim that stands for the item, for end hooks."""
    paths, message_id, stat = state.paths, snapshot.id, snapshot.item.stat
    path, lock = paths.at(snapshot.place), paths.lock(snapshot.lock_id)
    claim = Claim(state, snapshot.place, message_id, path, lock, runtime.ids.client, 0, EphemeralBudget({}), 0)
    claim.version, claim.raw, claim.created = stat.version, snapshot.item.data, stat.ctime
    try:
        claim.header, claim.body = decode(snapshot.item.data)
    except MalformedError:
        claim.body = snapshot.item.data
    record = record_of_attempts(snapshot.meta)
    claim.attempts, claim.retries = (0, 0) if record is None else (record.attempts, record.retries)
    claim.meta_version = None if snapshot.meta is None else snapshot.meta.stat.version
    claim.claimed_at = None if snapshot.lock is None else snapshot.lock.stat.ctime
    return claim


def attempts_of(meta: Node | None) -> int:
    """Return the number of counted attempts at an item, from its attempt record."""
    record = record_of_attempts(meta)
    return 0 if record is None else record.attempts


def record_of_attempts(meta: Node | None) -> AttemptRecord | None:
    """Decode an attempt record; return None if there is none, or if it does not decode."""
    try:
        return None if meta is None else AttemptRecord.decode(meta.data)
    except MalformedError:
        return None
