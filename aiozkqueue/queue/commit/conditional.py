"""Small all-or-nothing changes made of what was just read, each of which only the first who tries it can apply."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.errors import NotCommittedError
from aiozkqueue.queue.runtime.acl_errors import denied
from aiozkqueue.zookeeper import Create, NoAuthError, NoNodeError, NotEmptyError

from .write import OPERATION_WEIGHT, AtomicWrite

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from aiozkqueue.queue.runtime.clock import ServerClock
    from aiozkqueue.queue.session_core import SessionCore
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, ZooKeeperError

    from .attached import AttachedOp
    from .dispositions import Disposition

#: Changes under way at a time.
TOGETHER = 400


class Change(NamedTuple):
    """Operations of which one at least is refused when anything is not as it was read, or the change has been made."""

    store: QueueState
    operations: Sequence[Operation]
    end: tuple[Claim, Disposition] | None = None
    """What it is the end of, for the queue's attendants."""
    generation: int | None = None
    """The ZooKeeper session in which it was read, where name and version may later be those of another item."""

    def attached_ops(self, clock: ServerClock) -> list[AttachedOp]:
        """Return what the queue's features add to it now."""
        if self.end is None:
            return []
        claim, disposition = self.end
        now = clock.now()
        return [
            one for end_hook in self.store.end_hooks for one in end_hook.attached_ops(claim, disposition, lambda: now)
        ]

    @property
    def weight(self) -> int:
        """About how many bytes it takes in a multi."""
        weight = OPERATION_WEIGHT * len(self.operations)
        for operation in self.operations:
            weight += len(getattr(operation, "data", b""))
        if self.end is not None:
            weight += sum(end_hook.weight(*self.end) for end_hook in self.store.end_hooks)
        return weight


class ConditionalWrite(AtomicWrite):
    """One change."""

    __slots__ = ("_attached_ops", "_change", "_clock", "left", "obstacle")

    def __init__(self, transaction_id: str, change: Change, clock: ServerClock) -> None:
        super().__init__(transaction_id, change.generation, change.weight)
        self._change = change
        self._clock = clock
        self._attached_ops: list[AttachedOp] = []
        self.left: bool = False
        """Whether it was left, since something is not as it was read."""
        self.obstacle: str | None = None
        """The znode that could not be deleted, since others lie below it."""

    def compose(self, sent: list[Operation]) -> None:
        """Make the change, with its companions."""
        self._attached_ops = self._change.attached_ops(self._clock)
        sent += self._change.operations
        sent += (one.operation for one in self._attached_ops)

    def refused(
        self, index: int, operation: Operation, error: ZooKeeperError
    ) -> Coroutine[object, object, None] | None:
        """Leave it when it cannot be made any more; let a companion's owner mend."""
        changed = len(self._change.operations)
        if index >= changed:
            return self._attached_ops[index - changed].owner.repair(operation, error)
        if isinstance(error, NoAuthError):
            raise denied(self._change.store.name, error)
        store = self._change.store
        if store.dialect is not None and isinstance(operation, Create) and isinstance(error, NoNodeError):
            return store.repair(operation, error)  # the server has removed the folder of locks, which was empty
        if isinstance(error, NotEmptyError):
            self.obstacle = operation.path
        self.left = True
        raise NotCommittedError(f"{operation.path}: {error}")


async def apply(engine: SessionCore, changes: Iterable[Change]) -> list[bool]:
    """Make each change, or leave it; tell which were made, by whichever copy of the request.

    Raises: QueueError: what one change failed with, which was not left; the others before it were made or left.
    """
    return [not atomic_write.left for atomic_write in await settle(engine, changes)]


async def settle(engine: SessionCore, changes: Iterable[Change]) -> list[ConditionalWrite]:
    """Make each change, or leave it, as `apply` does; return what tells how each ended. Raises: as `apply`."""
    writes = [ConditionalWrite(engine.ids.next(), change, engine.server_clock) for change in changes]
    for start in range(0, len(writes), TOGETHER):
        together = writes[start : start + TOGETHER]
        for atomic_write in together:
            engine.committer.submit(atomic_write)
        for atomic_write in together:
            await atomic_write.wait()
        for atomic_write in together:
            if not atomic_write.left:
                atomic_write.outcome()
    return writes
