"""Cancels or replaces waiting messages, found by id or key, and altered only while no consumer holds them.

Each alteration is one multi based on data just read, which locks and unlocks the message itself. It fails if a consumer
takes the message in the meantime; the message is then read again. The multi uses a commit slot, so its reported outcome
is true even if the connection is lost. Within a transaction it is part of the commit, and fails with it.
"""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from aiozkqueue.errors import InvalidOptionError, NotCommittedError, QueueError
from aiozkqueue.layout import (
    EMPTY_HEADER,
    HEADER_LIMIT,
    End,
    ItemRef,
    LockRecord,
    MalformedError,
    decode,
    encode,
    has_field,
    item_id,
    key_hash,
    lane_at,
    payload_hash,
    with_key,
)
from aiozkqueue.queue.candidates.collectors import Matching
from aiozkqueue.queue.candidates.groups import is_group
from aiozkqueue.queue.claim.group_lock import due_data
from aiozkqueue.queue.commit.alterations import TransactionalAlteration
from aiozkqueue.queue.commit.conditional import Change, settle
from aiozkqueue.queue.commit.dispositions import Disposition, obstructed_by
from aiozkqueue.queue.commit.handle import QueueHandle
from aiozkqueue.queue.commit.unclaimed import as_configured, find, read_all, removal, still_locked
from aiozkqueue.queue.commit.unique_keys import UniqueKey
from aiozkqueue.queue.destination import Destination, binding_of, not_own
from aiozkqueue.queue.put.prepare import restored
from aiozkqueue.queue.state.hooks import AttachedOp
from aiozkqueue.runtime.deadline import Deadline
from aiozkqueue.runtime.sizes import too_large
from aiozkqueue.zookeeper import Check, Create, Delete, SetData

from .bundles import single_out
from .interrupt import can_interrupt, interrupt, interrupt_bundled, no_ledger_since
from .listing import collect_children, seen
from .stats import lanes
from .transfer import Transfer, transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.commit.unclaimed import ItemSnapshot
    from aiozkqueue.zookeeper import Operation

CANCELLED = Disposition("remove", outcome=End.CANCELLED)
#: How many times a message is read again after concurrent changes.
TRIES = 50


class Alteration(enum.Enum):
    """The result of a request to cancel or to update. It is true on success, for ``if await queue.cancel(...)``."""

    DONE = "done"
    HELD = "held"
    """A message was not changed, because it, or another message of its group, is in flight or leased."""
    NOT_FOUND = "not found"
    """It does not exist: it was never put, or it has ended."""

    def __bool__(self) -> bool:
        return self is Alteration.DONE


class AlterationTarget(NamedTuple):
    """Selects messages of a queue by id or by key, one of which is not None."""

    queue: Destination[Any]
    id: object
    key: object


class AlteringWork(Protocol):
    """A transaction that alters messages by its commit."""

    def require_open(self) -> None:
        """Raise unless it is open. Raises: TransactionClosedError."""
        ...

    def removes(self, queue: str, place: str) -> bool:
        """Return whether its commit removes the item at a place."""
        ...

    def alter(self, place: str, alteration: TransactionalAlteration) -> None:
        """Add an alteration of the item at a place to its commit."""
        ...


async def cancel(
    runtime: Runtime, wanted: AlterationTarget, work: AlteringWork | None = None, *, running: bool = False
) -> Alteration:
    """Remove the waiting messages with an id or key; in the commit of ``work`` if given.

    With ``running``, remove those that a session holds too.

    Raises: InvalidOptionError, NotCommittedError, OutcomeUnknownError, AccessDeniedError, TransactionClosedError.
    """
    handle = _handle_of(runtime, wanted)

    def make(found: ItemSnapshot) -> Change:
        return removal(runtime, handle.state, found, CANCELLED)

    if work is not None:
        return await _join(handle, wanted, make, work, removes=True)
    if running and (bundled := await _cancel_in_bundle(handle, wanted)) is not None:
        return bundled
    return await _alter(handle, wanted, make, running=running)


async def update(
    runtime: Runtime, wanted: AlterationTarget, value: object, work: AlteringWork | None = None
) -> Alteration:
    """Replace the payload of the waiting messages with an id or key; in the commit of ``work`` if given.

    Raises: as `cancel`; PayloadError, MessageTooLargeError, DuplicateKeyError.
    """
    handle = _handle_of(runtime, wanted)
    body = binding_of(wanted.queue).codec.encode(value, handle.name)
    if len(body) + HEADER_LIMIT > runtime.max_message:
        raise too_large(f"queue {handle.name!r}: the message", len(body), runtime.max_message)

    def make(found: ItemSnapshot) -> Change:
        return replacement(handle, found, body)

    if work is not None:
        return await _join(handle, wanted, make, work, removes=False)
    return await _alter(handle, wanted, make)


async def move(runtime: Runtime, wanted: AlterationTarget, target: str) -> Alteration:
    """Move the waiting messages with an id or key to another queue, each in one multi.

    Each keeps its id, headers, key, priority, group and time of put; its attempts are counted from 0 again. The other
    queue is created if it does not exist, but only for a message.

    Raises: as `cancel`; InvalidNameError, MessageTooLargeError; QueueFullError: the target has no capacity.
    """
    handle, into = _handle_of(runtime, wanted), QueueHandle(runtime, runtime.queue_state(target))
    named, moved = _named(wanted), False
    for _ in range(TRIES):
        if not await handle.state.open_latest():
            break
        now = await runtime.server_clock.learned(handle.paths.due)
        bundle_held = await _single_out(handle, wanted)
        found = await _found(handle, named)
        if waiting := [snapshot for snapshot in found if not snapshot.held(now)]:
            await into.state.open_or_create()
        outcomes = await transfer(runtime, _transfers(handle, into, waiting), Deadline(0, runtime.clock))
        for outcome in outcomes:
            if isinstance(outcome, QueueError):
                raise outcome
        moved = moved or any(outcomes)
        if all(outcomes):  # otherwise some have changed since they were read
            if len(waiting) < len(found) or (bundle_held and not found):
                return Alteration.HELD
            break
    else:
        raise always_changed(handle)
    return Alteration.DONE if moved else Alteration.NOT_FOUND


def _transfers(handle: QueueHandle[Runtime], into: QueueHandle[Runtime], waiting: list[ItemSnapshot]) -> list[Transfer]:
    """Return the moves of items to another queue."""
    runtime, state = handle.runtime, handle.state
    moved = Disposition("remove", reason=f"moved to {into.name}", replaced=True)
    return [
        Transfer(
            snapshot.id,
            [restored(into, item, snapshot.item)],
            as_configured(snapshot, removal(runtime, state, snapshot, moved)),
        )
        for snapshot in waiting
        if (item := state.parse_item(snapshot.name)) is not None
    ]


def _handle_of(runtime: Runtime, wanted: AlterationTarget) -> QueueHandle[Runtime]:
    """Return the handle of the selected queue. Raises: InvalidOptionError."""
    queue: object = wanted.queue
    if not isinstance(queue, Destination):
        msg = f"give a queue, made by session.queue(), not {type(queue).__name__}"
        raise InvalidOptionError(msg)
    if binding_of(queue).owner is not runtime:
        raise not_own(queue.name)
    state = runtime.queue_state(queue.name)
    if state.dialect is not None:
        msg = f"queue {state.name!r}: messages of another program's queue cannot be cancelled or updated"
        raise InvalidOptionError(msg)
    return QueueHandle(runtime, state)


async def _join(
    handle: QueueHandle[Runtime],
    wanted: AlterationTarget,
    make: Callable[[ItemSnapshot], Change],
    work: AlteringWork,
    *,
    removes: bool,
) -> Alteration:
    """Find the messages once, and add the alterations to a unit of work."""
    work.require_open()
    named = _named(wanted)
    if not await handle.state.open_latest():
        return Alteration.NOT_FOUND
    now = await handle.runtime.server_clock.learned(handle.paths.due)
    bundle_held = await _single_out(handle, wanted)
    found = [snapshot for snapshot in await _found(handle, named) if not work.removes(handle.name, snapshot.place)]
    waiting = [snapshot for snapshot in found if not snapshot.held(now)]
    alter_with(work, [(snapshot, make(snapshot)) for snapshot in waiting], removes=removes)
    if len(waiting) < len(found) or (bundle_held and not found):
        return Alteration.HELD
    return Alteration.DONE if waiting else Alteration.NOT_FOUND


def alter_with(work: AlteringWork, changes: Sequence[tuple[ItemSnapshot, Change]], *, removes: bool) -> int:
    """Alter messages in the commit of a unit of work, except those that it removes; return how many.

    Raises: TransactionClosedError.
    """
    work.require_open()
    left = [(found, change) for found, change in changes if not work.removes(change.state.name, found.place)]
    for found, change in left:
        work.alter(found.place, TransactionalAlteration(found, change, removes=removes))
    return len(left)


async def _cancel_in_bundle(handle: QueueHandle[Runtime], wanted: AlterationTarget) -> Alteration | None:
    """Cancel a message of a bundle, held or not; return None if it is in no bundle."""
    _named(wanted)  # checks it
    if not isinstance(wanted.id, str) or not await handle.state.open_latest() or not handle.config.bundled:
        return None
    await handle.runtime.server_clock.learned(handle.paths.due)
    done = await interrupt_bundled(handle, wanted.id, CANCELLED)
    return None if done is None else Alteration.DONE if done else Alteration.HELD


async def _alter(
    handle: QueueHandle[Runtime],
    wanted: AlterationTarget,
    make: Callable[[ItemSnapshot], Change],
    *,
    running: bool = False,
) -> Alteration:
    named, altered = _named(wanted), set[str]()
    for _ in range(TRIES):
        if not await handle.state.open_latest():
            break
        bundle_held = await _single_out(handle, wanted)
        found = [snapshot for snapshot in await _found(handle, named) if snapshot.place not in altered]
        checks: list[Operation] = []
        if running:
            checks, listed = await no_ledger_since(handle), found
            found = await find(handle, [snapshot.place for snapshot in listed])
            if len(found) < len(listed):
                continue  # some have ended, or were reassigned
        now = await handle.runtime.server_clock.learned(handle.paths.due)
        waiting = [
            snapshot for snapshot in found if (can_interrupt(snapshot, now) if running else not snapshot.held(now))
        ]
        made = await settled(handle, waiting, None if running else make, checks)
        altered |= made
        if len(made) == len(waiting):  # otherwise some have changed since they were read
            if len(waiting) < len(found) or (bundle_held and not altered):
                return Alteration.HELD
            break
    else:
        raise always_changed(handle)
    return Alteration.DONE if altered else Alteration.NOT_FOUND


async def settled(
    handle: QueueHandle[Runtime],
    waiting: Sequence[ItemSnapshot],
    make: Callable[[ItemSnapshot], Change] | None,
    checks: Sequence[Operation] = (),
) -> set[str]:
    """Change messages (None: cancel held ones, with ``checks``); return the places of those still as read.

    Raises: ItemNotEmptyError: a message cannot be removed; as `settle`.
    """
    if make is None:
        parts = [await interrupt(handle, snapshot, CANCELLED, checks) for snapshot in waiting]
    else:
        changes = [as_configured(snapshot, make(snapshot)) for snapshot in waiting]
        parts = await settle(handle.runtime, changes)
    for snapshot, part in zip(waiting, parts, strict=True):
        if part.obstacle is not None:
            raise obstructed_by(handle.name, snapshot.id, part.obstacle)
    return {snapshot.place for snapshot, part in zip(waiting, parts, strict=True) if not part.left}


def always_changed(handle: QueueHandle[Runtime]) -> NotCommittedError:
    """Return the error of an alteration that was refused as often as it may be tried."""
    return NotCommittedError(f"queue {handle.name!r}: messages changed each time they were read; try again")


def _named(wanted: AlterationTarget) -> Callable[[str], bool]:
    """Return a predicate that selects items by name. Raises: InvalidOptionError."""
    queue, message_id, key = wanted.queue.name, wanted.id, wanted.key
    if (message_id is None) == (key is None):
        msg = f"queue {queue!r}: give either id= or key="
        raise InvalidOptionError(msg)
    value = message_id if key is None else key
    if not isinstance(value, str) or not value:
        msg = f"queue {queue!r}: {'id' if key is None else 'key'}={value!r}: give a non-empty str"
        raise InvalidOptionError(msg)
    if key is None:
        # The end of the name is compared first: parsing every name of a deep queue costs more than listing it.
        return lambda name: value in name and _id_of(name) == value
    field = f"k{key_hash(value)}-"
    return lambda name: has_field(name, field)


def _id_of(name: str) -> str | None:
    try:
        return item_id(name)
    except MalformedError:
        return None


async def _single_out(handle: QueueHandle[Runtime], wanted: AlterationTarget) -> bool:
    """Dissolve the bundle that holds the wanted message; return whether a consumer holds the bundle.

    Messages with a key are never in a bundle.
    """
    if not handle.config.bundled or not isinstance(wanted.id, str):
        return False
    return await single_out(handle, await lanes(handle), wanted.id)


async def _found(handle: QueueHandle[Runtime], wanted: Callable[[str], bool]) -> list[ItemSnapshot]:
    """List the queue, and read the selected items."""
    places = await _find_places(handle, wanted)
    found = await find(handle, places)
    if len(found) == len(places):
        return found
    # Some have ended since they were listed, or were reassigned: these have other names.
    return await find(handle, await _find_places(handle, wanted))


async def _find_places(handle: QueueHandle[Runtime], wanted: Callable[[str], bool]) -> list[str]:
    """List the queue; return the places of the selected items."""
    places: list[str] = []
    for folder in await lanes(handle):
        lane = handle.paths.place_of(folder)
        found = await collect_children(handle, folder, lambda: Matching(wanted))
        places += [ItemRef(lane, name).path for name in await seen(handle, found.names) if _id_of(name) is not None]
    return places


async def updated_places(handle: QueueHandle[Runtime], places: Iterable[str]) -> list[str]:
    """Return the present places of leased messages whose names an update has changed; ``places`` are empty.

    An update changes the name of an item that has the key of its payload. A message that was leased has a record of its
    attempts until it ends, so lanes are listed only for messages that exist.
    """
    keyed = [ItemRef.parse(place) for place in places if has_field(place, "k")]
    records = await read_all(handle, [handle.paths.meta(handle.state.item_id(ref.name)) for ref in keyed])
    existing = [ref for ref, record in zip(keyed, records, strict=True) if record is not None]
    ends = {ref.name.rpartition("-i")[2] for ref in existing}  # an id and a sequence number
    found: list[str] = []
    for lane in {ref.lane for ref in existing}:
        listed = await collect_children(handle, handle.paths.at(lane), Matching)
        found += [ItemRef(lane, name).path for name in listed.names if name.rpartition("-i")[2] in ends]
    return found


def replacement(handle: QueueHandle[Runtime], found: ItemSnapshot, body: bytes) -> Change:
    """Replace an item's payload; its id, headers, place and attempts are unchanged, and so is its explicit key."""
    paths = handle.paths
    place, replaced, further = _replaced(handle, found, body)
    lock, grouped = paths.lock(found.lock_id), is_group(found.lock_id)
    if found.lock is None:
        record = LockRecord(handle.runtime.ids.next(), handle.runtime.ids.client).encode()
        return Change(handle.state, [Create(lock, record), *replaced, Delete(lock)], further=further)
    if grouped and LockRecord.decode(found.lock.data).claim != found.id:
        return Change(handle.state, [*still_locked(handle.state, found), *replaced], further=further)
    operations: list[Operation] = [Check(lock, found.lock.stat.version), *replaced]
    if found.end is not None:
        # A client that removes the lock now is refused, because the item has changed; this check shows that the lock is
        # still due.
        due = paths.due_node(found.end, found.id)
        data = due_data(place, found.lock_id) if grouped else place.encode()
        operations += [Delete(due), Create(due, data)]
    return Change(handle.state, operations, further=further)


def _replaced(
    handle: QueueHandle[Runtime], found: ItemSnapshot, body: bytes
) -> tuple[str, list[Operation], list[AttachedOp]]:
    """Return the place of an item with another payload, and the operations that replace it and its unique key.

    An item without an explicit key has that of its payload, in its name: it is replaced by one with another name.
    """
    paths, path, version = handle.paths, handle.paths.at(found.place), found.item.stat.version
    try:
        header = decode(found.item.data)[0]
    except MalformedError:
        return found.place, [SetData(path, encode(body, EMPTY_HEADER), version)], []
    item, key = handle.state.parse_item(found.name), payload_hash(body)
    if item is None or header.key is not None or item.key in (None, key):
        return found.place, [SetData(path, encode(body, header), version)], []
    place = ItemRef(lane_at(found.place), with_key(found.name, item.key, key)).path
    target = paths.at(place)
    data = encode(body, replace(header, enqueued_at=header.put_at(found.item.stat.ctime)))
    # An item at version 0 counts as one without an attempt record.
    operations: list[Operation] = [Delete(path, version), Create(target), SetData(target, data, 0)]
    if not item.unique:
        return place, operations, []
    operations.append(Delete(paths.key(item.key)))
    unique = UniqueKey(handle.state, key, found.id, ignore=False)
    return place, operations, [AttachedOp(unique.operation(target), unique)]
