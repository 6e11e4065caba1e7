"""Small all-or-nothing changes based on data just read. Of several sessions that try a change, one can apply it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.errors import AccessDeniedError, NotCommittedError
from aiozkqueue.queue.runtime.acl_errors import access_denied
from aiozkqueue.zookeeper import Create, NoAuthError, NoNodeError, NotEmptyError

from .write import OPERATION_WEIGHT, AtomicWrite

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from aiozkqueue.errors import QueueError
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.runtime.clock import ServerClock
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.state.hooks import AttachedOp
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, ZooKeeperError

    from .dispositions import Disposition
    from .write import Composition

#: Changes under way at the same time.
TOGETHER = 400


class Change(NamedTuple):
    """Operations of which at least one is refused if the data has changed since, or if the change was made already."""

    state: QueueState
    operations: Sequence[Operation]
    end: tuple[Claim, Disposition] | None = None
    """The end that this change makes, for the queue's end hooks."""
    generation: int | None = None
    """The ZooKeeper session of the read; required if another item may later have the same name and version."""

    def attached_ops(self, clock: ServerClock) -> list[AttachedOp]:
        """Return the operations that the queue's features add now."""
        if self.end is None:
            return []
        claim, disposition = self.end
        now = clock.now()
        return [
            attached_op
            for end_hook in self.state.snapshot.end_hooks
            for attached_op in end_hook.attached_ops(claim, disposition, lambda: now)
        ]

    @property
    def weight(self) -> int:
        """The approximate size in a multi, in bytes."""
        weight = OPERATION_WEIGHT * len(self.operations)
        for operation in self.operations:
            weight += len(getattr(operation, "data", b""))
        if self.end is not None:
            weight += sum(end_hook.weight(*self.end) for end_hook in self.state.snapshot.end_hooks)
        return weight


class ConditionalWrite(AtomicWrite):
    """The write of one change."""

    __slots__ = ("_change", "_clock", "left", "obstacle")

    def __init__(self, transaction_id: str, change: Change, clock: ServerClock) -> None:
        super().__init__(transaction_id, change.generation, change.weight)
        self._change = change
        self._clock = clock
        self.left: bool = False
        """Whether the change was not made, because the data is not as it was read."""
        self.obstacle: str | None = None
        """The znode that could not be deleted because it has children."""

    def compose(self, composition: Composition) -> None:
        """Add the change and its attached operations."""
        composition.operations += self._change.operations
        for attached_op in self._change.attached_ops(self._clock):
            composition.add(*attached_op)

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Give the change up if it has become impossible."""
        if isinstance(error, NoAuthError):
            raise access_denied(self._change.state.name, error)
        state = self._change.state
        if state.dialect is not None and isinstance(operation, Create) and isinstance(error, NoNodeError):
            return state.repair(operation, error)  # the server has removed the empty locks znode
        if isinstance(error, NotEmptyError):
            self.obstacle = operation.path
        self.left = True
        raise NotCommittedError(f"{operation.path}: {error}")


async def apply(runtime: Runtime, changes: Iterable[Change]) -> list[bool]:
    """Try each change; return for each whether it was made, even if a lost reply made the request go out again.

    Raises: QueueError: the error of a change that failed otherwise; the changes before it were made or given up.
    """
    return [not atomic_write.left for atomic_write in await settle(runtime, changes)]


async def settle(runtime: Runtime, changes: Iterable[Change]) -> list[ConditionalWrite]:
    """Try each change, as `apply` does; return the writes, which hold the results. Raises: as `apply`."""
    return await _settle(runtime, changes)


async def settle_allowed(runtime: Runtime, changes: Iterable[Change]) -> list[ConditionalWrite]:
    """Try each change, as `settle` does; the write of a change that an ACL refuses has the error in its ``error``.

    Raises: as `apply`, but AccessDeniedError.
    """
    return await _settle(runtime, changes, spared=AccessDeniedError)


async def _settle(
    runtime: Runtime, changes: Iterable[Change], *, spared: type[QueueError] | tuple[()] = ()
) -> list[ConditionalWrite]:
    writes = [ConditionalWrite(runtime.ids.next(), change, runtime.server_clock) for change in changes]
    for start in range(0, len(writes), TOGETHER):
        together = writes[start : start + TOGETHER]
        for atomic_write in together:
            runtime.committer.submit(atomic_write)
        for atomic_write in together:
            await atomic_write.wait()
        for atomic_write in together:
            if not atomic_write.left and not isinstance(atomic_write.error, spared):
                atomic_write.outcome()
    return writes
