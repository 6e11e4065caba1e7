"""Puts that only one of several sessions can make: each is guarded by a change that succeeds once.

Redriving a dead letter works like this, and so do moving a message to another queue (removed here and put there in one
multi) and putting the occurrence of a recurring job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.errors import AccessDeniedError, DuplicateKeyError, QueueError, QueueFullError
from aiozkqueue.queue.commit.conditional import ConditionalPart, settle_together
from aiozkqueue.queue.commit.create_items import CreateItems
from aiozkqueue.queue.commit.dispositions import obstructed_by
from aiozkqueue.queue.commit.unique_keys import has_unique_keys, leave_out_held
from aiozkqueue.queue.commit.write import AtomicWrite, JoinedParts
from aiozkqueue.runtime.deadline import AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.queue.commit.conditional import Change
    from aiozkqueue.queue.commit.put import Put
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.state.hooks import CapacityLimit
    from aiozkqueue.runtime.deadline import Deadline


class Transfer(NamedTuple):
    """The messages of one item, put when the item is removed or shortened."""

    id: str
    """The item's id."""
    puts: Sequence[Put]
    """The puts, all into one queue."""
    change: Change


def guarded(transaction_id: str, guard: ConditionalPart, puts: Sequence[Put]) -> AtomicWrite:
    """Return the write that makes puts together with a change that succeeds once.

    It has capacity, or is admitted because it was sent before the queue became bounded.
    """
    return AtomicWrite(transaction_id, JoinedParts((guard, CreateItems(puts, needs=dict))))


async def transfer(runtime: Runtime, items: Sequence[Transfer], deadline: Deadline) -> list[bool | QueueError]:
    """Try each transfer, of at least one message; return for each whether it was made, or its error.

    False: another session was faster, and the item is left to it. The target queue must be open. If it is bounded, wait
    for capacity up to ``deadline``; a transfer without capacity gets a `QueueFullError`. One whose unique key is held
    needs no capacity, and gets a `DuplicateKeyError`.
    """
    for item in items:
        for put in item.puts:
            if put.plan is not None:
                await put.plan.prepare()
    outcomes: list[bool | QueueError] = []
    while len(outcomes) < len(items):
        remaining = items[len(outcomes) :]
        first = remaining[0].puts
        limit, part = first[0].state.snapshot.capacity, remaining
        if limit is not None:
            if (refusal := await _refusal(runtime, limit, first)) is not None:
                outcomes.append(refusal)
                continue
            try:
                await limit.acquire(len(first), len(first), deadline)
            except QueueFullError as full:
                return outcomes + [full] * len(remaining)
            fitting = 1
            while fitting < len(remaining) and limit.try_acquire(len(remaining[fitting].puts)):
                fitting += 1
            part = remaining[:fitting]
        outcomes += await _transfer(runtime, part, limit)
    return outcomes


async def _refusal(runtime: Runtime, limit: CapacityLimit[AtomicWrite], puts: Sequence[Put]) -> QueueError | None:
    """Return the error of puts that would be refused in a full queue, because their unique key is held.

    The holder of the key is ended if it has expired.
    """
    if has_unique_keys(puts):
        try:
            await limit.acquire(len(puts), len(puts), AT_ONCE)
        except QueueFullError:
            try:
                await leave_out_held(runtime.zookeeper, puts)
            except (DuplicateKeyError, AccessDeniedError) as error:
                return error
        else:
            limit.release(len(puts))
    return None


async def _transfer(
    runtime: Runtime, items: Sequence[Transfer], limit: CapacityLimit[AtomicWrite] | None
) -> list[bool | QueueError]:
    """Try the transfers for which capacity has been acquired."""
    guards = [ConditionalPart(item.change) for item in items]
    writes: list[AtomicWrite] = []
    for item, guard in zip(items, guards, strict=True):
        atomic_write = guarded(runtime.ids.next(), guard, item.puts)
        if limit is not None:
            limit.bind(atomic_write, len(item.puts))
        writes.append(atomic_write)
    await settle_together(runtime, writes)
    outcomes: list[bool | QueueError] = []
    for item, guard in zip(items, guards, strict=True):
        error = guard.error
        if error is not None and not isinstance(error, QueueError):
            raise error
        if guard.obstacle is not None:
            outcomes.append(obstructed_by(item.change.state.name, item.id, guard.obstacle))
        else:
            outcomes.append(not guard.left if guard.left or error is None else error)
    return outcomes
