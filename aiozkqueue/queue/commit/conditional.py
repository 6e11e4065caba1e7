"""Small all-or-nothing changes based on data just read. If several sessions try a change, only one can apply it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiozkqueue.errors import AccessDeniedError, NotCommittedError
from aiozkqueue.runtime.acl_errors import access_denied
from aiozkqueue.zookeeper import Create, NoAuthError, NoNodeError, NotEmptyError, ServerError

from .dispositions import hooks_of
from .write import OPERATION_WEIGHT, AtomicWrite, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from aiozkqueue.errors import QueueError
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.state.hooks import AttachedOp
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, ZooKeeperError

    from .dispositions import Disposition
    from .write import Composition

#: Parts of changes that are sent together.
MAX_PARTS = 400


class Change(NamedTuple):
    """Operations. At least one of them is refused if the data has changed since, or if the change was made already."""

    state: QueueState
    operations: Sequence[Operation]
    end: tuple[Claim, Disposition] | None = None
    """The end that this change makes, for the queue's end hooks."""
    generation: int | None = None
    """The ZooKeeper session of the read; required if another item may later have the same name and version."""
    further: Sequence[AttachedOp] = ()
    """Operations with handlers of their own, which come after the others."""

    def attached_ops(self, moment: Callable[[], int]) -> list[AttachedOp]:
        """Return the further operations, and those that the queue's features add; see `EndHook.attached_ops`."""
        hooks = [] if self.end is None else [(hook, *self.end) for hook in hooks_of(*self.end)]
        return [*self.further, *(each for hook, claim, end in hooks for each in hook.attached_ops(claim, end, moment))]

    @property
    def weight(self) -> int:
        """The approximate size in a multi, in bytes."""
        weight = OPERATION_WEIGHT * len(self.operations)
        for operation in self.operations:
            weight += len(getattr(operation, "data", b""))
        if self.end is not None:
            weight += sum(end_hook.weight(*self.end) for end_hook in hooks_of(*self.end))
        return weight


class ConditionalPart(Part):
    """One change, which is made or given up."""

    __slots__ = ("_change", "error", "generation", "left", "obstacle")

    def __init__(self, change: Change) -> None:
        super().__init__(change.weight)
        self.generation = change.generation
        self._change = change
        self.left: bool = False
        """Whether the change was not made, because the data has changed since it was read."""
        self.error: BaseException | None = None
        """Why the change was not made; None: it was made."""
        self.obstacle: str | None = None
        """The znode that could not be deleted because it has children."""

    def compose(self, composition: Composition) -> None:
        """Add the change and its attached operations."""
        composition.operations += self._change.operations
        for attached_op in self._change.attached_ops(composition.now):
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
        if operation.path == state.paths.base:
            state.invalidate()  # it was another configuration when the data was read
        self.left = not isinstance(error, ServerError)  # the server would refuse a repetition too
        raise NotCommittedError(f"{operation.path}: {error}")

    def failed(self, error: BaseException) -> None:
        """Keep the error."""
        self.error = error


async def apply(runtime: Runtime, changes: Iterable[Change]) -> list[bool]:
    """Try each change; return for each whether it was made, even if a lost reply made the request go out again.

    Raises: QueueError: the error of a change that failed otherwise; the changes before it were made or given up.
    """
    return [not part.left for part in await settle(runtime, changes)]


async def settle_allowed(runtime: Runtime, changes: Iterable[Change]) -> list[ConditionalPart]:
    """Try each change, as `settle` does; a change that an ACL refuses has the error in its ``error``.

    Raises: as `apply`, but AccessDeniedError.
    """
    return await settle(runtime, changes, kept=AccessDeniedError)


async def settle(
    runtime: Runtime, changes: Iterable[Change], *, kept: type[QueueError] | tuple[()] = ()
) -> list[ConditionalPart]:
    """Try each change, as `apply` does; return the parts, which hold the results.

    A change that fails with an error of the class ``kept`` has it in its ``error``.

    Raises: as `apply`, but such errors.
    """
    parts = [ConditionalPart(change) for change in changes]
    for start in range(0, len(parts), MAX_PARTS):
        together = parts[start : start + MAX_PARTS]
        await settle_together(runtime, [AtomicWrite(runtime.ids.next(), part) for part in together])
        for part in together:
            if part.error is not None and not part.left and not isinstance(part.error, kept):
                raise part.error
    return parts


async def settle_together(runtime: Runtime, writes: Iterable[AtomicWrite]) -> None:
    """Submit writes whose parts keep their outcomes, and wait until all are settled."""
    submitted = list(writes)
    for atomic_write in submitted:
        atomic_write.watch(_kept)
        runtime.committer.submit(atomic_write)
    for atomic_write in submitted:
        await atomic_write.wait()


def _kept(_: AtomicWrite) -> None:
    """Do nothing: the part keeps the outcome, even if its write is settled before the wait for it begins."""
