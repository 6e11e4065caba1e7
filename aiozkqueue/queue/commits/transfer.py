"""Puts that only one of several who try can make: each goes with a change that fails for all but the first.

So is a dead letter driven back, a message moved to another queue (removed where it lies and put elsewhere, at once),
and the occurrence of a recurring job put.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.errors import QueueError

from .changes import ChangeSettlement
from .items import PutSettlement

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from aiozkqueue.queue.engine import Engine
    from aiozkqueue.zookeeper import Operation, Result, ZooKeeperError

    from .changes import Change
    from .items import Put


class GuardedPutSettlement(PutSettlement):
    """Items put together with a change that only one can make."""

    __slots__ = ("_guard", "_guards")

    def __init__(self, transaction_id: str, puts: Sequence[Put], guard: ChangeSettlement) -> None:
        super().__init__(transaction_id, puts)
        self._guard = guard
        self._guards = 0
        self.weight += guard.weight

    @property
    def left(self) -> bool:
        """Whether it was left to somebody who was quicker."""
        return self._guard.left

    def operations(self) -> Sequence[Operation]:
        """Make the change, create the items."""
        guards = self._guard.operations()
        self._guards = len(guards)
        return [*guards, *super().operations()]

    def refused(self, index: int, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Leave it to whoever was quicker; open the queues put to again when they have changed."""
        if index < self._guards:
            return self._guard.refused(index, error)
        return super().refused(index - self._guards, error)

    async def readmit(self) -> None:
        """What operators move is let in, whatever the size of the queue."""

    def applied(self, results: Sequence[Result] | None) -> None:
        """See how far the lane's counter has come."""
        super().applied(None if results is None else results[self._guards :])


async def transfer(engine: Engine, items: Iterable[tuple[Put, Change]]) -> list[bool | QueueError]:
    """Put each item and remove it where it was, all or nothing; tell for each whether that was done, or what failed.

    Those that others were quicker with are left to them: False. The queues put to must have been opened.
    """
    settlements: list[GuardedPutSettlement] = []
    for put, removal in items:
        if put.plan is not None:
            await put.plan.prepare()
        change = ChangeSettlement(engine.ids.next(), removal, engine.server_clock)
        settlements.append(GuardedPutSettlement(engine.ids.next(), (put,), change))
    for settlement in settlements:
        engine.committer.submit(settlement)
    for settlement in settlements:
        await settlement.wait()
    outcomes: list[bool | QueueError] = []
    for settlement in settlements:
        error = settlement.error
        if error is not None and not isinstance(error, QueueError):
            raise error
        outcomes.append(not settlement.left if settlement.left or error is None else error)
    return outcomes
