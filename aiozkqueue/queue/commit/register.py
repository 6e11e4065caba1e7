"""Changes of registrations, such as jobs and subscriber groups: applied exactly once, or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from aiozkqueue.errors import AccessDeniedError, QueueError
from aiozkqueue.zookeeper import NoAuthError

from .write import AtomicWrite, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.zookeeper import Operation, ZooKeeperError

    from .write import Composition


class FixedOperations(Part):
    """Operations that are the same in each attempt. A lost reply is not mistaken for a refusal.

    Without operations, only the commit slot is written, which samples ZooKeeper's time.
    """

    __slots__ = ("_explain", "_operations")

    def __init__(self, operations: Sequence[Operation], explain: Callable[[ZooKeeperError], QueueError]) -> None:
        size = sum(len(data) for operation in operations if isinstance(data := getattr(operation, "data", b""), bytes))
        super().__init__(size + 200 * (len(operations) + 1))
        self._operations = operations
        self._explain = explain

    def compose(self, composition: Composition) -> None:
        """Add the given operations."""
        composition.operations += self._operations

    def repair(self, operation: Operation, error: ZooKeeperError) -> NoReturn:
        """Raise the caller's own explanation of the refusal."""
        if isinstance(error, NoAuthError):
            msg = f"{operation.path}: {error}; {error.advice}"
            raise AccessDeniedError(msg) from error
        raise self._explain(error)


async def server_time(runtime: Runtime) -> int:
    """Return ZooKeeper's time in milliseconds; if it is unknown, write until it is known, however long that takes.

    Raises: QueueError; as `Queue.put`.
    """
    if not runtime.server_clock.sampled:
        await runtime.settle(AtomicWrite(runtime.ids.next(), FixedOperations((), lambda error: QueueError(f"{error}"))))
    return runtime.server_clock.now()
