"""Changes of messages that no consumer holds, made by a transaction in the multi of its commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from aiozkqueue.errors import ConflictError
from aiozkqueue.runtime.acl_errors import access_denied
from aiozkqueue.zookeeper import NoAuthError, NotEmptyError

from .conditional import ConditionalPart
from .dispositions import obstructed_by

if TYPE_CHECKING:
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, ZooKeeperError

    from .conditional import Change


class TransactionalAlteration(ConditionalPart):
    """One change that commits with a transaction. If it is impossible, the whole commit is refused."""

    __slots__ = ("_what", "removes", "state")

    def __init__(self, change: Change, what: str, *, removes: bool) -> None:
        super().__init__(change)
        self._what = what
        self.removes: bool = removes
        """Whether it removes a message."""
        self.state: QueueState = change.state

    def repair(self, operation: Operation, error: ZooKeeperError) -> NoReturn:
        """Fail the commit: the message has changed since it was read.

        Raises: ConflictError, ItemNotEmptyError, AccessDeniedError.
        """
        if isinstance(error, NotEmptyError):
            raise obstructed_by(self.state.name, self._what.removeprefix("message "), operation.path)
        if isinstance(error, NoAuthError):
            raise access_denied(self.state.name, error)
        self._learn(operation)
        msg = (
            f"queue {self.state.name!r}: {self._what}, which the transaction was to alter, has been taken or changed "
            "by another client; no part of the transaction was applied; repeat it"
        )
        raise ConflictError(msg) from error
