"""The split of an item that holds several messages: one multi replaces the item and its lock by one item each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from aiozkqueue.errors import SessionExpiredError
from aiozkqueue.layout import AttemptRecord, name_at
from aiozkqueue.queue.state.hooks import GONE, LEFT
from aiozkqueue.zookeeper import Create, Delete

from .dispositions import refusal_of
from .write import OPERATION_WEIGHT, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.zookeeper import Operation, Result, ZooKeeperError

    from .meter import Meter
    from .write import Composition


class SplitItem(Part):
    """The replacement of an item by its parts; ``applied`` is called when they exist.

    The item's version is the fence, as in a commit. A refusal leaves the item and its lock unchanged.
    """

    __slots__ = ("_applied", "_claim", "_parts", "generation")

    def __init__(self, claim: Claim, parts: Sequence[Create], applied: Callable[[], None]) -> None:
        weight = sum(len(part.data) + 2 * OPERATION_WEIGHT for part in parts)
        super().__init__(weight + 4 * OPERATION_WEIGHT)
        self.generation = claim.generation
        self._claim = claim
        self._parts = parts
        self._applied = applied

    def compose(self, composition: Composition) -> None:
        """Replace the item. Attempts counted for it count for its first message."""
        claim, paths, sent = self._claim, self._claim.state.paths, composition.operations
        sent.append(Delete(claim.path, claim.version))
        sent += self._parts
        sent.append(Delete(claim.lock))
        if claim.meta_version is not None:
            first = claim.state.item_id(name_at(self._parts[0].path))
            sent.append(Delete(paths.meta(claim.id), claim.meta_version))
            sent.append(Create(paths.meta(first), AttemptRecord(claim.attempts, first).encode()))

    def repair(self, operation: Operation, error: ZooKeeperError) -> NoReturn:
        """Raise the refusal. The caller still holds the item, unless it has lost it."""
        raise refusal_of(self._claim, operation, error)

    def applied(self, results: Sequence[Result] | None, meter: Meter | None) -> None:  # noqa: ARG002 - neither is needed
        """End the claim: the item has been replaced by its parts."""
        self._claim.settled(GONE)
        self._applied()

    def failed(self, error: BaseException) -> None:
        """End the claim if the server has removed the lock."""
        if isinstance(error, SessionExpiredError):
            self._claim.settled(LEFT)
