"""Items found by looking, not by claiming: what holds each, and how it is removed or set free all the same.

Whoever removes an item that it does not hold (a purge, a move, an acknowledgement by token) makes a change of what it
has just read: one multi that fails if any of it is otherwise by now, or when it is sent a second time. An item that
nobody holds is locked and unlocked by the change itself, which fails if somebody claims it meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from aiozkqueue.errors import AccessDeniedError
from aiozkqueue.layout import AttemptRecord, LockRecord, MalformedError, decode, item_id
from aiozkqueue.queue.candidates.groups import is_group
from aiozkqueue.queue.commit.conditional import Change
from aiozkqueue.queue.commit.dispositions import REMOVED, bury
from aiozkqueue.queue.commit.unique_keys import freed_with
from aiozkqueue.queue.runtime.acl_errors import allowed
from aiozkqueue.queue.state.claim import Claim, EphemeralBudget
from aiozkqueue.zookeeper import PAGE, Check, Create, Delete, SetData, read_pages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from aiozkqueue.layout import IdSource
    from aiozkqueue.queue.commit.dispositions import Disposition
    from aiozkqueue.queue.runtime.clock import ServerClock
    from aiozkqueue.queue.session_core import SessionCore
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Node, Operation

#: About how many bytes of items whatever walks through a queue reads at a time; more than `PAGE` items never.
PAGE_BYTES = 4 * 1024 * 1024
#: Items read at first, when nothing is known of their size.
FIRST_PAGE = 4

Sealed: TypeAlias = "dict[str, AccessDeniedError]"
"""Places of items that this user may not read, or their locks, or the records of attempts at them."""


class Remover(Protocol):
    """What whoever removes an item must have: an `SessionCore`, or a part of one."""

    @property
    def ids(self) -> IdSource:
        """Names the claim that the removal is."""
        ...

    @property
    def server_clock(self) -> ServerClock:
        """Tells when it was."""
        ...


class ItemSnapshot(NamedTuple):
    """An item, with what holds it and the record of attempts at it."""

    place: str
    item: Node
    lock: Node | None
    meta: Node | None
    locked_by: str
    """What locks it: its id, or its group."""

    @property
    def id(self) -> str:
        """The message's id."""
        return item_id(self.name) if is_group(self.locked_by) else self.locked_by

    @property
    def name(self) -> str:
        """The item's name."""
        return self.place.rpartition("/")[2]

    @property
    def body(self) -> bytes:
        """The payload; of an item whose envelope does not decode, all that is stored."""
        try:
            return decode(self.item.data)[1]
        except MalformedError:
            return self.item.data

    @property
    def end(self) -> int | None:
        """When the lock ends by itself, ms; None when it ends with a session, or there is none."""
        return None if self.lock is None else LockRecord.decode(self.lock.data).end

    def held(self, now: int) -> bool:
        """Whether somebody handles it: a transaction, a delivery, or a lease that has not ended."""
        if self.lock is None:
            return False
        lock = LockRecord.decode(self.lock.data)
        return lock.end is None or (lock.leased and lock.end > now)

    @property
    def in_flight(self) -> bool:
        """Whether a transaction or delivery holds it."""
        return self.lock is not None and self.end is None


async def find(
    engine: SessionCore, store: QueueState, places: Sequence[str], sealed: Sealed | None = None
) -> list[ItemSnapshot]:
    """Read what lies at these places, without those where nothing lies. Raises: as `find_pages`."""
    return [one async for page in find_pages(engine, store, places, sealed) for one in page]


async def find_pages(
    engine: SessionCore, store: QueueState, places: Sequence[str], sealed: Sealed | None = None
) -> AsyncIterator[list[ItemSnapshot]]:
    """Read as `find` does, as many at a time as are expected to take `PAGE_BYTES`.

    With ``sealed``, what this user may not read is put into it, and the others are read all the same.

    Raises: AccessDeniedError: without ``sealed``.
    """

    async def read(page: Sequence[str]) -> list[ItemSnapshot]:
        try:
            return await read_page(page)
        except AccessDeniedError:
            if sealed is None:
                raise
        found: list[ItemSnapshot] = []
        for place in page:
            try:
                found += await read_page([place])
            except AccessDeniedError as error:
                sealed[place] = error
        return found

    async def read_page(page: Sequence[str]) -> list[ItemSnapshot]:
        wanted: list[str] = []
        for place in page:
            name = place.rpartition("/")[2]
            wanted += (store.paths.at(place), store.lock(name), store.paths.meta(store.item_id(name)))
        nodes = iter(await read_all(engine, store, wanted))
        return [
            ItemSnapshot(place, item, lock, meta, store.locked_by(place.rpartition("/")[2]))
            for place, item, lock, meta in zip(page, nodes, nodes, nodes, strict=True)
            if item is not None
        ]

    async for found in _pages(places, read):
        yield found


async def item_pages(
    engine: SessionCore, store: QueueState, places: Sequence[str]
) -> AsyncIterator[list[ItemSnapshot]]:
    """Read as `find_pages` does, and only the items: whether any is held is not told. Raises: AccessDeniedError."""

    async def read(page: Sequence[str]) -> list[ItemSnapshot]:
        nodes = await read_all(engine, store, [store.paths.at(place) for place in page])
        return [
            ItemSnapshot(place, item, None, None, store.locked_by(place.rpartition("/")[2]))
            for place, item in zip(page, nodes, strict=True)
            if item is not None
        ]

    async for found in _pages(places, read):
        yield found


async def _pages(
    places: Sequence[str], read: Callable[[Sequence[str]], Awaitable[list[ItemSnapshot]]]
) -> AsyncIterator[list[ItemSnapshot]]:
    """Read a page at a time: as many as are expected to take `PAGE_BYTES`."""
    start, together, size = 0, FIRST_PAGE, 0
    while start < len(places):
        page = places[start : start + together]
        found = await read(page)
        yield found
        start += len(page)
        size += sum(len(one.item.data) for one in found)
        together = max(1, min(PAGE, PAGE_BYTES * start // max(1, size)))


async def read_all(engine: SessionCore, store: QueueState, paths: Sequence[str]) -> list[Node | None]:
    """Read many znodes, a page at a time. Raises: AccessDeniedError."""
    with allowed(store.name):
        return await read_pages(engine.zookeeper, paths)


def removal(engine: Remover, store: QueueState, found: ItemSnapshot, disposition: Disposition) -> Change:
    """Remove an item, whoever holds it, with all that belongs to it: its end is as ``disposition`` says."""
    paths = store.paths
    if found.lock is None:
        lock = LockRecord(engine.ids.next(), engine.ids.client).encode()
        held = paths.lock(found.locked_by)
        operations: list[Operation] = [Create(held, lock), Delete(held)]
        if found.meta is None and store.config.counts:
            # Somebody may have claimed it, recorded the attempt and died since it was looked at.
            operations += [Create(paths.meta(found.id)), Delete(paths.meta(found.id))]
    else:
        operations = unlocking(store, found)
    operations.append(Delete(paths.at(found.place), found.item.stat.version))
    if found.meta is not None:
        operations.append(Delete(paths.meta(found.id), found.meta.stat.version))
    if store.dialect is None:
        operations += freed_with(paths, found.name)
    return Change(store, operations, (as_claim(store, found, engine), disposition) if store.end_hooks else None)


def shortening(engine: Remover, store: QueueState, found: ItemSnapshot, data: bytes) -> Change:
    """Leave an item that nobody holds with these bytes, and without attempts: those were at what is taken out of it."""
    path, version = store.paths.at(found.place), found.item.stat.version
    operations = removal(engine, store, found, REMOVED).operations
    return Change(store, [SetData(path, data, version) if one == Delete(path, version) else one for one in operations])


def burial(engine: Remover, store: QueueState, found: ItemSnapshot, disposition: Disposition) -> Change:
    """Make a dead letter of an item, whoever holds it: its end is as ``disposition`` says."""
    change = removal(engine, store, found, disposition)
    dead = bury(as_claim(store, found, engine), disposition.reason, engine.server_clock.now())
    return change._replace(operations=[*change.operations, dead])


def unlocking(store: QueueState, found: ItemSnapshot) -> list[Operation]:
    """Take off the lock that was found, if one was."""
    if found.lock is None:
        return []
    paths = store.paths
    if is_group(found.locked_by) and LockRecord.decode(found.lock.data).claim != found.id:
        return [Check(paths.lock(found.locked_by), found.lock.stat.version)]  # it holds one before this
    operations: list[Operation] = [Delete(paths.lock(found.locked_by), found.lock.stat.version)]
    if found.end is not None:
        operations.append(Delete(paths.due_node(found.end, found.id)))
    return operations


def opening(store: QueueState, found: ItemSnapshot) -> Change:
    """Force the lock that was found open, and wake idle consumers: its holder finds its claim lost."""
    raised = SetData(store.paths.at(found.place), found.item.data, found.item.stat.version)
    return Change(store, [*unlocking(store, found), raised, SetData(store.paths.items, b"")])


def as_claim(store: QueueState, found: ItemSnapshot, engine: Remover) -> Claim:
    """Make a claim of what was found, for attendants that want to know whose end they are told of."""
    paths, message_id, stat = store.paths, found.id, found.item.stat
    path, lock = paths.at(found.place), paths.lock(found.locked_by)
    claim = Claim(store, found.place, message_id, path, lock, engine.ids.client, 0, EphemeralBudget({}), 0)
    claim.version, claim.raw, claim.created = stat.version, found.item.data, stat.ctime
    try:
        claim.header, claim.body = decode(found.item.data)
    except MalformedError:
        claim.body = found.item.data
    record = record_of_attempts(found.meta)
    claim.attempts, claim.retries = (0, 0) if record is None else (record.attempts, record.retries)
    claim.meta_version = None if found.meta is None else found.meta.stat.version
    claim.since = None if found.lock is None else found.lock.stat.ctime
    return claim


def attempts_of(meta: Node | None) -> int:
    """Return how many hand-overs of an item have been counted, by its record of attempts."""
    record = record_of_attempts(meta)
    return 0 if record is None else record.attempts


def record_of_attempts(meta: Node | None) -> AttemptRecord | None:
    """Read the record of attempts at an item; None when there is none, or it does not decode."""
    try:
        return None if meta is None else AttemptRecord.decode(meta.data)
    except MalformedError:
        return None
