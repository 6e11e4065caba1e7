"""Changes to registrations, such as jobs and subscriber groups: each is applied exactly once, or refused."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from aiozkqueue.errors import NotCommittedError, OutcomeUnknownError
from aiozkqueue.runtime.acl_errors import required_right, right_denied
from aiozkqueue.runtime.clock import TRUSTED
from aiozkqueue.zookeeper import NoAuthError

from .write import AtomicWrite, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiozkqueue.errors import QueueError
    from aiozkqueue.queue.commit.runtime import Runtime
    from aiozkqueue.zookeeper import Operation, ZooKeeperError

    from .write import Composition

Explain: TypeAlias = "Callable[[ZooKeeperError], QueueError | None]"
"""Returns the error to raise for a refusal; None: of a kind that it does not know."""


class FixedOperations(Part):
    """Operations that are the same in each attempt. A lost reply is not mistaken for a refusal.

    Without operations, only the commit slot is written, which samples ZooKeeper's time.
    """

    __slots__ = ("_explain", "_operations", "changed")

    def __init__(self, changed: str, operations: Sequence[Operation], explain: Explain) -> None:
        """``changed`` names the data that the operations change, for the errors that ``explain`` does not know."""
        size = sum(len(data) for operation in operations if isinstance(data := getattr(operation, "data", b""), bytes))
        super().__init__(size + 200 * (len(operations) + 1))
        self.changed = changed
        self._operations = operations
        self._explain = explain

    def compose(self, composition: Composition) -> None:
        """Add the given operations."""
        composition.operations += self._operations

    def repair(self, operation: Operation, error: ZooKeeperError) -> NoReturn:
        """Raise the caller's own explanation of the refusal."""
        if isinstance(error, NoAuthError):
            raise right_denied(self.changed, required_right(operation), error) from error
        raise self._explain(error) or NotCommittedError(f"{self.changed}: {error}; nothing was applied")


async def server_time(runtime: Runtime, subject: str) -> int:
    """Return ZooKeeper's time in milliseconds; write until there is a recent sample, however long that takes.

    ``subject`` names the feature that needs the time, for the error of a user who may not write.

    Raises: QueueError; as `Queue.put`.
    """
    while not runtime.server_clock.sampled_within(TRUSTED):
        sample = FixedOperations(subject, (), lambda _: None)
        with suppress(OutcomeUnknownError):  # it changes nothing else
            await runtime.settle(AtomicWrite(runtime.ids.next(), sample))
    return runtime.server_clock.now()
