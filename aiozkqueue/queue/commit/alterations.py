"""Changes of messages that no consumer holds, made by a transaction in the multi of its commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozkqueue.errors import ConflictError
from aiozkqueue.runtime.acl_errors import access_denied
from aiozkqueue.zookeeper import NoAuthError, NotEmptyError

from .conditional import ConditionalPart
from .dispositions import obstructed_by
from .write import OPERATION_WEIGHT

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.zookeeper import Operation, ZooKeeperError

    from .conditional import Change
    from .unclaimed import ItemSnapshot
    from .write import Composition


class TransactionalAlteration(ConditionalPart):
    """One change that commits with a transaction. If it is impossible, the whole commit is refused."""

    __slots__ = ("_found", "id", "removes", "state")

    def __init__(self, found: ItemSnapshot, change: Change, *, removes: bool) -> None:
        super().__init__(change)
        self.weight += OPERATION_WEIGHT  # the check
        self._found = found
        self.id: str = found.id
        self.removes: bool = removes
        """Whether it removes a message."""
        self.state: QueueState = change.state

    def compose(self, composition: Composition) -> None:
        """Add the change, with a check that the configuration is one under which the change is this one."""
        composition.operations.append((self.state.snapshot if self._is_unaffected() else self._found.known).check)
        super().compose(composition)

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None]:
        """Fail the commit if the message has changed since it was read; read the configuration if that has changed.

        Raises: ConflictError, ItemNotEmptyError, AccessDeniedError.
        """
        if isinstance(error, NotEmptyError):
            raise obstructed_by(self.state.name, self._found.id, operation.path)
        if isinstance(error, NoAuthError):
            raise access_denied(self.state.name, error)
        if operation.path != self.state.paths.base:
            raise self._conflict() from error
        self.state.invalidate()
        return self._reopen()

    async def _reopen(self) -> None:
        """Read the configuration again. Raises: ConflictError: another change would be needed under it."""
        if not await self.state.open_existing() or not self._is_unaffected():
            raise self._conflict()

    def _is_unaffected(self) -> bool:
        """Whether the known configuration has the same lock for the message, and the same operations for its end.

        The first delayed put to a queue changes the configuration too, and may be part of the same commit.
        """
        found, config, before = self._found, self.state.config, self._found.known.config
        same_end = (config.history, config.counts) == (before.history, before.counts)
        return same_end and self.state.lock_id_of(found.name) == found.lock_id

    def _conflict(self) -> ConflictError:
        return ConflictError(
            f"queue {self.state.name!r}: message {self._found.id}, which the transaction was to alter, has been taken "
            "or changed by another client; no part of the transaction was applied; repeat it"
        )
