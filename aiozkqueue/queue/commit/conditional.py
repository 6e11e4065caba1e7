"""Small all-or-nothing changes made of what was just read, each of which only the first who tries it can apply."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.errors import NotCommittedError
from aiozkqueue.queue.runtime.acl_errors import denied
from aiozkqueue.zookeeper import NoAuthError, NotEmptyError

from .write import OPERATION_WEIGHT, Settlement

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from aiozkqueue.queue.runtime.clock import ServerClock
    from aiozkqueue.queue.session_core import Engine
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.state.queue_state import QueueStore
    from aiozkqueue.zookeeper import Operation, ZooKeeperError

    from .attached import Companion
    from .dispositions import Ending

#: Changes under way at a time.
TOGETHER = 400


class Change(NamedTuple):
    """Operations of which one at least is refused when anything is not as it was read, or the change has been made."""

    store: QueueStore
    operations: Sequence[Operation]
    end: tuple[Claim, Ending] | None = None
    """What it is the end of, for the queue's attendants."""

    def companions(self, clock: ServerClock) -> list[Companion]:
        """Return what the queue's features add to it now."""
        if self.end is None:
            return []
        claim, ending = self.end
        now = clock.now()
        return [one for attendant in self.store.attendants for one in attendant.companions(claim, ending, lambda: now)]

    @property
    def weight(self) -> int:
        """About how many bytes it takes in a multi."""
        weight = OPERATION_WEIGHT * len(self.operations)
        for operation in self.operations:
            weight += len(getattr(operation, "data", b""))
        if self.end is not None:
            weight += sum(attendant.weight(*self.end) for attendant in self.store.attendants)
        return weight


class ChangeSettlement(Settlement):
    """One change."""

    __slots__ = ("_change", "_clock", "_companions", "left", "obstacle")

    def __init__(self, transaction_id: str, change: Change, clock: ServerClock) -> None:
        super().__init__(transaction_id, None, change.weight)
        self._change = change
        self._clock = clock
        self._companions: list[Companion] = []
        self.left: bool = False
        """Whether it was left, since something is not as it was read."""
        self.obstacle: str | None = None
        """The znode that could not be deleted, since others lie below it."""

    def compose(self, sent: list[Operation]) -> None:
        """Make the change, with its companions."""
        self._companions = self._change.companions(self._clock)
        sent += self._change.operations
        sent += (one.operation for one in self._companions)

    def refused(
        self, index: int, operation: Operation, error: ZooKeeperError
    ) -> Coroutine[object, object, None] | None:
        """Leave it when it cannot be made any more; let a companion's owner mend."""
        changed = len(self._change.operations)
        if index >= changed:
            return self._companions[index - changed].owner.mend(operation, error)
        if isinstance(error, NoAuthError):
            raise denied(self._change.store.name, error)
        if isinstance(error, NotEmptyError):
            self.obstacle = operation.path
        self.left = True
        raise NotCommittedError(f"{operation.path}: {error}")


async def apply(engine: Engine, changes: Iterable[Change]) -> list[bool]:
    """Make each change, or leave it; tell which were made, by whichever copy of the request.

    Raises: QueueError: what one change failed with, which was not left; the others before it were made or left.
    """
    return [not settlement.left for settlement in await settle(engine, changes)]


async def settle(engine: Engine, changes: Iterable[Change]) -> list[ChangeSettlement]:
    """Make each change, or leave it, as `apply` does; return what tells how each ended. Raises: as `apply`."""
    settlements = [ChangeSettlement(engine.ids.next(), change, engine.server_clock) for change in changes]
    for start in range(0, len(settlements), TOGETHER):
        together = settlements[start : start + TOGETHER]
        for settlement in together:
            engine.committer.submit(settlement)
        for settlement in together:
            await settlement.wait()
        for settlement in together:
            if not settlement.left:
                settlement.outcome()
    return settlements
