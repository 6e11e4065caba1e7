"""Changes that a transaction makes of what others have put and nobody holds, in the multi of its commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.errors import ConflictError
from aiozkqueue.queue.runtime.acl_errors import denied
from aiozkqueue.zookeeper import NoAuthError, NotEmptyError

from .dispositions import obstructed_by

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from aiozkqueue.queue.runtime.clock import ServerClock
    from aiozkqueue.queue.state.queue_state import QueueStore
    from aiozkqueue.zookeeper import Operation, ZooKeeperError

    from .attached import Mender
    from .conditional import Change


class Beside:
    """One change beside a commit's own; when it cannot be made any more, the commit is refused as a whole."""

    __slots__ = ("_change", "_what", "removes", "store", "weight")

    def __init__(self, change: Change, what: str, *, removes: bool) -> None:
        self._change = change
        self._what = what
        self.removes: bool = removes
        """Whether a message is gone with it."""
        self.weight: int = change.weight
        self.store: QueueStore = change.store

    def operations(self, clock: ServerClock) -> Iterator[tuple[Mender, Operation]]:
        """What to send now, and who answers for each."""
        for operation in self._change.operations:
            yield self, operation
        for companion in self._change.companions(clock):
            yield companion.owner, companion.operation

    def mend(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """See `Mender`: something is not as it was read.

        Raises: ConflictError, ItemNotEmptyError, AccessDeniedError.
        """
        if isinstance(error, NotEmptyError):
            raise obstructed_by(self.store.name, self._what.removeprefix("message "), operation.path)
        if isinstance(error, NoAuthError):
            raise denied(self.store.name, error)
        msg = (
            f"queue {self.store.name!r}: {self._what}, which the transaction was to alter, has been taken or changed "
            "by others; nothing of the transaction was applied, do it again"
        )
        raise ConflictError(msg) from error
