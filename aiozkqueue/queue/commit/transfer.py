"""Puts that only one of several who try can make: each goes with a change that fails for all but the first.

So is a dead letter driven back, a message moved to another queue (removed where it lies and put elsewhere, at once),
and the occurrence of a recurring job put.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.errors import QueueError, QueueFullError

from .conditional import ConditionalWrite
from .dispositions import obstructed_by
from .puts import PutWrite

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from aiozkqueue.queue.put.capacity import CapacityGate
    from aiozkqueue.queue.runtime.deadline import Deadline
    from aiozkqueue.queue.session_core import SessionCore
    from aiozkqueue.zookeeper import Operation, Result, ZooKeeperError

    from .conditional import Change
    from .puts import Put


class Transfer(NamedTuple):
    """The messages of one item, to be put when the item goes, or is left with less."""

    id: str
    """The item's id."""
    puts: Sequence[Put]
    """All into one queue."""
    change: Change


class GuardedPuts(PutWrite):
    """Items put together with a change that only one can make."""

    __slots__ = ("_guard", "_guards")

    def __init__(self, transaction_id: str, puts: Sequence[Put], guard: ConditionalWrite) -> None:
        super().__init__(transaction_id, puts)
        self.generation = guard.generation
        self._guard = guard
        self._guards = 0
        self.grow(guard.weight)

    @property
    def left(self) -> bool:
        """Whether it was left to somebody who was quicker."""
        return self._guard.left

    @property
    def obstacle(self) -> str | None:
        """See `ConditionalWrite`."""
        return self._guard.obstacle

    def compose(self, sent: list[Operation]) -> None:
        """Make the change, create the items."""
        start = len(sent)
        self._guard.compose(sent)
        self._guards = len(sent) - start
        super().compose(sent)

    def refused(
        self, index: int, operation: Operation, error: ZooKeeperError
    ) -> Coroutine[object, object, None] | None:
        """Leave it to whoever was quicker; open the queues put to again when they have changed."""
        if index < self._guards:
            return self._guard.refused(index, operation, error)
        return super().refused(index - self._guards, operation, error)

    async def reserve_again(self) -> None:
        """It has room already, or had been sent when the queue got a size, and is let in."""

    def applied(self, results: Sequence[Result] | None) -> None:
        """See how far the lane's counter has come."""
        super().applied(None if results is None else results[self._guards :])


async def transfer(engine: SessionCore, items: Sequence[Transfer], patience: Deadline) -> list[bool | QueueError]:
    """Make each transfer, which puts at least one message, or leave it; tell for each if it was made, or its error.

    False: others were quicker, and the item is left to them. The queue put to must have been opened. If it has a size,
    this waits for room as long as there is patience: `QueueFullError` for what got none.
    """
    for item in items:
        for put in item.puts:
            if put.plan is not None:
                await put.plan.prepare()
    outcomes: list[bool | QueueError] = []
    while len(outcomes) < len(items):
        rest = items[len(outcomes) :]
        first = rest[0].puts
        room, part = first[0].store.room, rest
        if room is not None:
            try:
                await room.acquire(len(first), patience)
            except QueueFullError as full:
                return outcomes + [full] * len(rest)
            fitting = 1
            while fitting < len(rest) and room.try_acquire(len(rest[fitting].puts)):
                fitting += 1
            part = rest[:fitting]
        outcomes += await _transfer(engine, part, room)
    return outcomes


async def _transfer(
    engine: SessionCore, items: Sequence[Transfer], room: CapacityGate | None
) -> list[bool | QueueError]:
    """Do so with as many as there is room for, which has been taken."""
    writes: list[GuardedPuts] = []
    for item in items:
        guard = ConditionalWrite(engine.ids.next(), item.change, engine.server_clock)
        atomic_write = GuardedPuts(engine.ids.next(), item.puts, guard)
        if room is not None:
            room.bind(atomic_write, len(item.puts))
        writes.append(atomic_write)
    for atomic_write in writes:
        engine.committer.submit(atomic_write)
    for atomic_write in writes:
        await atomic_write.wait()
    outcomes: list[bool | QueueError] = []
    for item, atomic_write in zip(items, writes, strict=True):
        error = atomic_write.error
        if error is not None and not isinstance(error, QueueError):
            raise error
        if atomic_write.obstacle is not None:
            outcomes.append(obstructed_by(item.change.store.name, item.id, atomic_write.obstacle))
        else:
            outcomes.append(not atomic_write.left if atomic_write.left or error is None else error)
    return outcomes
