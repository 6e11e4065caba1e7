"""Puts that only one of several sessions can make: each is guarded by a change that succeeds once.

Redriving a dead letter works like this, and so do moving a message to another queue (removed here and put there in one
multi) and putting the occurrence of a recurring job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.errors import QueueError, QueueFullError

from .conditional import ConditionalWrite
from .dispositions import obstructed_by
from .puts import PutWrite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.runtime.deadline import Deadline
    from aiozkqueue.queue.state.hooks import CapacityLimit

    from .conditional import Change
    from .puts import Put
    from .write import AtomicWrite, Composition


class Transfer(NamedTuple):
    """The messages of one item, put when the item is removed or shortened."""

    id: str
    """The item's id."""
    puts: Sequence[Put]
    """The puts, all into one queue."""
    change: Change


class GuardedPuts(PutWrite):
    """Items put together with a change that succeeds once."""

    __slots__ = ("_guard",)

    def __init__(self, transaction_id: str, puts: Sequence[Put], guard: ConditionalWrite) -> None:
        super().__init__(transaction_id, puts)
        self.generation = guard.generation
        self._guard = guard
        self.grow(guard.weight)

    @property
    def left(self) -> bool:
        """Whether it was not made, because another session was faster."""
        return self._guard.left

    @property
    def obstacle(self) -> str | None:
        """See `ConditionalWrite`."""
        return self._guard.obstacle

    def compose(self, composition: Composition) -> None:
        """Add the change, then the creates of the items."""
        composition.answer_with(self._guard)
        self._guard.compose(composition)
        composition.answer_with(self)
        super().compose(composition)

    async def reserve_again(self) -> None:
        """Do nothing: the write has room, or is admitted because it was sent before the queue became bounded."""


async def transfer(runtime: Runtime, items: Sequence[Transfer], patience: Deadline) -> list[bool | QueueError]:
    """Try each transfer, of at least one message; return for each whether it was made, or its error.

    False: another session was faster, and the item is left to it. The target queue must be open. If it is bounded, wait
    for room up to ``patience``; a transfer without room gets a `QueueFullError`.
    """
    for item in items:
        for put in item.puts:
            if put.plan is not None:
                await put.plan.prepare()
    outcomes: list[bool | QueueError] = []
    while len(outcomes) < len(items):
        rest = items[len(outcomes) :]
        first = rest[0].puts
        room, part = first[0].state.snapshot.capacity, rest
        if room is not None:
            try:
                await room.acquire(len(first), patience)
            except QueueFullError as full:
                return outcomes + [full] * len(rest)
            fitting = 1
            while fitting < len(rest) and room.try_acquire(len(rest[fitting].puts)):
                fitting += 1
            part = rest[:fitting]
        outcomes += await _transfer(runtime, part, room)
    return outcomes


async def _transfer(
    runtime: Runtime, items: Sequence[Transfer], room: CapacityLimit[AtomicWrite] | None
) -> list[bool | QueueError]:
    """Try the transfers for which room has been acquired."""
    writes: list[GuardedPuts] = []
    for item in items:
        guard = ConditionalWrite(runtime.ids.next(), item.change, runtime.server_clock)
        atomic_write = GuardedPuts(runtime.ids.next(), item.puts, guard)
        if room is not None:
            room.bind(atomic_write, len(item.puts))
        writes.append(atomic_write)
    for atomic_write in writes:
        runtime.committer.submit(atomic_write)
    for atomic_write in writes:
        await atomic_write.wait()
    outcomes: list[bool | QueueError] = []
    for item, atomic_write in zip(items, writes, strict=True):
        error = atomic_write.error
        if error is not None and not isinstance(error, QueueError):
            raise error
        if atomic_write.obstacle is not None:
            outcomes.append(obstructed_by(item.change.state.name, item.id, atomic_write.obstacle))
        else:
            outcomes.append(not atomic_write.left if atomic_write.left or error is None else error)
    return outcomes
