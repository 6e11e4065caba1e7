"""The cancellation of held messages: one multi removes a message with its lock, and notifies its holder.

The holder's commit is refused from then on. The multi for a message of a bundle makes the other messages single items.
If these exceed a request, the message leaves the bundle alone, and consumers find the bundle without its lock.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from aiozkqueue.errors import NotCommittedError, TransactionTooLargeError
from aiozkqueue.layout import LockRecord, MalformedError, decode, single_place
from aiozkqueue.layout.cancelled import with_cancelled
from aiozkqueue.queue.commit.conditional import Change, settle
from aiozkqueue.queue.commit.unclaimed import as_configured, removal
from aiozkqueue.queue.redelivery.bundles import reduction, replacement
from aiozkqueue.queue.state.claim import Claim, EphemeralBudget
from aiozkqueue.runtime.acl_errors import translate_denials
from aiozkqueue.zookeeper import Check, Create, Delete, NoNodeError, SetData

from .bundles import find_bundled, payload_of
from .ledger_pages import is_of_ledger
from .stats import lanes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.queue.commit.conditional import ConditionalPart
    from aiozkqueue.queue.commit.dispositions import Disposition
    from aiozkqueue.queue.commit.handle import QueueHandle
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.commit.unclaimed import ItemSnapshot
    from aiozkqueue.zookeeper import Node, Operation

    from .bundles import Found

#: How often a bundle is read again that its holder changes in the meantime.
_TRIES: Final = 50


def can_interrupt(found: ItemSnapshot, now: int) -> bool:
    """Return whether a message may be removed: it is free, or a session or a lease holds it.

    A lock without an end that belongs to no session is that of a batch for Spark.
    """
    return not found.held(now) or found.end is not None or bool(found.lock and found.lock.stat.ephemeral_owner)


async def no_ledger_since(handle: QueueHandle[Runtime]) -> list[Operation]:
    """Return the checks that no ledger has locked anything from now on.

    A lock that is read after this may have been replaced by that of a ledger, with the same version.
    """
    path = handle.paths.ledgers
    with translate_denials(handle.name):
        stat = await handle.zookeeper.exists(path)
    return [Create(path), Delete(path)] if stat is None else [Check(path, stat.version)]


async def interrupt(
    handle: QueueHandle[Runtime], found: ItemSnapshot, disposition: Disposition, checks: Sequence[Operation]
) -> ConditionalPart:
    """Remove a message, held or not, and name it to its holder. The result says whether it was still as read.

    ``checks`` are those of `no_ledger_since`, called before the message was read.

    Raises: as `settle`.
    """
    state, paths = handle.state, handle.paths
    cancelled = await _cancelled_node(handle)
    change = as_configured(found, removal(handle.runtime, state, found, disposition))
    operations: list[Operation] = [
        *(checks if found.lock is not None else ()),
        *change.operations,
        SetData(paths.cancelled, with_cancelled(cancelled.data, found.id), cancelled.stat.version),
    ]
    if found.lock is not None and found.meta is None:  # the holder may have recorded its attempt since the read
        operations += [Create(paths.meta(found.id)), Delete(paths.meta(found.id))]
    (part,) = await settle(handle.runtime, [change._replace(operations=operations)])
    return part


async def _cancelled_node(handle: QueueHandle[Runtime]) -> Node:
    """Return the znode that names cancelled messages; create it if it is missing."""
    with translate_denials(handle.name):
        while True:
            try:
                return await handle.zookeeper.read(handle.paths.cancelled)
            except NoNodeError:
                await handle.zookeeper.ensure(handle.paths.cancelled)


async def interrupt_bundled(handle: QueueHandle[Runtime], message_id: str, disposition: Disposition) -> bool | None:
    """Remove a message that is in a bundle, held or not, and make the others single items, or have consumers do so.

    Return False if a batch for Spark holds the bundle, and None if the message is in no bundle.

    Raises: NotCommittedError: others kept changing the bundle; or as `settle`.
    """
    obstructed = alone = False
    for _ in range(_TRIES):
        if not await handle.state.open_existing():  # again, if the configuration has changed
            return None
        found = await find_bundled(handle, await lanes(handle), message_id)
        if found is None:
            return None
        if found.state.lock is not None and is_of_ledger(LockRecord.decode(found.state.lock.data)):
            return False
        change = await _removing(handle, found, disposition, obstructed=obstructed, alone=alone)
        try:
            (part,) = await settle(handle.runtime, [change])
        except TransactionTooLargeError:
            if alone:
                raise
            alone = True
            continue
        if not part.left:
            return True
        obstructed = obstructed or part.obstacle is not None
    msg = f"queue {handle.name!r}: the bundle of message {message_id} changed each time it was read; try again"
    raise NotCommittedError(msg)


async def _removing(
    handle: QueueHandle[Runtime], found: Found, disposition: Disposition, *, obstructed: bool, alone: bool
) -> Change:
    """Return the change that ends one message of a bundle, and takes the bundle's lock away.

    The bundle is replaced by its other messages. With ``alone``, only the one leaves; then the bundle is as after a
    forced release, and consumers replace it.

    The record is written at the version read, so it is refused if the holder has ended a message in the meantime, and
    so is everything that the holder writes later.
    """
    paths, ids, bundle = handle.paths, handle.runtime.ids, found.state
    cancelled = await _cancelled_node(handle)
    claim = _claim_of(handle, found)
    lock = paths.lock(bundle.name.id)
    operations: list[Operation] = [handle.state.snapshot.check]  # another configuration may have the end recorded
    if bundle.lock is None:
        operations.append(Create(lock, LockRecord(ids.next(), ids.client).encode()))
    if alone:
        operations += [
            reduction(paths, bundle, [found.message.position]),
            Delete(lock),
            SetData(paths.locks, b""),
            SetData(paths.items, b""),
        ]
    else:
        operations += replacement(paths, found.place, bundle, handle.runtime.server_clock.now(), obstructed=obstructed)
        operations += [Delete(lock), Delete(claim.path)]
        if found.attempts:
            operations.append(Delete(paths.meta(claim.id)))
    operations.append(SetData(paths.cancelled, with_cancelled(cancelled.data, claim.id), cancelled.stat.version))
    return Change(handle.state, operations, (claim, disposition))


def _claim_of(handle: QueueHandle[Runtime], found: Found) -> Claim:
    """Return a claim that stands for a message of a bundle, for end hooks."""
    state, bundle, message = handle.state, found.state, found.message
    place, lock = single_place(found.place, message.id, message.position), handle.paths.lock(bundle.name.id)
    client, path = handle.runtime.ids.client, handle.paths.at(place)
    claim = Claim(state, place, message.id, path, lock, client, 0, EphemeralBudget({}), 0)
    claim.raw, claim.created, claim.attempts = message.data, bundle.bundle.ctime, found.attempts
    claim.body = payload_of(message.data)
    with suppress(MalformedError):
        claim.header = decode(message.data)[0]
    claim.claimed_at = None if bundle.lock is None else bundle.lock.ctime
    return claim
