"""Changes of messages that no consumer holds, made by a transaction in the multi of its commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.errors import ConflictError
from aiozkqueue.queue.runtime.acl_errors import access_denied
from aiozkqueue.zookeeper import NoAuthError, NotEmptyError

from .dispositions import obstructed_by

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from aiozkqueue.queue.runtime.clock import ServerClock
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, ZooKeeperError

    from .conditional import Change
    from .write import Composition


class TransactionalAlteration:
    """One change that commits with a transaction. If it is impossible, the whole commit is refused."""

    __slots__ = ("_change", "_what", "removes", "state", "weight")

    def __init__(self, change: Change, what: str, *, removes: bool) -> None:
        self._change = change
        self._what = what
        self.removes: bool = removes
        """Whether it removes a message."""
        self.weight: int = change.weight
        self.state: QueueState = change.state

    def compose(self, composition: Composition, clock: ServerClock) -> None:
        """Add the operations to send now."""
        composition.answer_with(self)
        composition.operations += self._change.operations
        for attached_op in self._change.attached_ops(clock):
            composition.add(*attached_op)

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """See `RefusalHandler`: the message has changed since it was read.

        Raises: ConflictError, ItemNotEmptyError, AccessDeniedError.
        """
        if isinstance(error, NotEmptyError):
            raise obstructed_by(self.state.name, self._what.removeprefix("message "), operation.path)
        if isinstance(error, NoAuthError):
            raise access_denied(self.state.name, error)
        msg = (
            f"queue {self.state.name!r}: {self._what}, which the transaction was to alter, has been taken or changed "
            "by another client; nothing of the transaction was applied; repeat it"
        )
        raise ConflictError(msg) from error
