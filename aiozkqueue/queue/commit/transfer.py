"""Puts that only one of several sessions can make: each is guarded by a change that succeeds once.

Redriving a dead letter works like this, and so do moving a message to another queue (removed here and put there in one
multi) and putting the occurrence of a recurring job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.errors import QueueError, QueueFullError

from .conditional import ConditionalPart, settle_together
from .create_items import CreateItems
from .dispositions import obstructed_by
from .write import AtomicWrite, JoinedParts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.state.hooks import CapacityLimit
    from aiozkqueue.runtime.deadline import Deadline

    from .conditional import Change
    from .put import Put


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
    for capacity up to ``deadline``; a transfer without capacity gets a `QueueFullError`.
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
