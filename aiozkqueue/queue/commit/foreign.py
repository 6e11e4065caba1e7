"""The split of an item that holds several messages: one multi replaces the item and its lock by one item each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from aiozkqueue.layout import AttemptRecord
from aiozkqueue.queue.state.hooks import GONE, LEFT
from aiozkqueue.zookeeper import Create, Delete

from .dispositions import refusal_of
from .write import OPERATION_WEIGHT, AtomicWrite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.zookeeper import Operation, Result, ZooKeeperError

    from .write import Composition


class SplitSettlement(AtomicWrite):
    """Replaces an item by its parts, and calls ``applied`` when they exist.

    The item's version is the fence, as in a commit. A refusal leaves the item and its lock unchanged.
    """

    __slots__ = ("_applied", "_claim", "_parts")

    def __init__(self, transaction_id: str, claim: Claim, parts: Sequence[Create], applied: Callable[[], None]) -> None:
        weight = sum(len(part.data) + 2 * OPERATION_WEIGHT for part in parts)
        super().__init__(transaction_id, claim.generation, weight + 4 * OPERATION_WEIGHT)
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
            first = claim.state.item_id(self._parts[0].path.rpartition("/")[2])
            sent.append(Delete(paths.meta(claim.id), claim.meta_version))
            sent.append(Create(paths.meta(first), AttemptRecord(claim.attempts, first).encode()))

    def repair(self, operation: Operation, error: ZooKeeperError) -> NoReturn:
        """Raise the refusal. The caller still holds the item, unless it has lost it."""
        raise refusal_of(self._claim, operation, error)

    def applied(self, results: Sequence[Result] | None) -> None:  # noqa: ARG002 - the results are not needed
        """End the claim: the item has been replaced by its parts."""
        self._claim.settled(GONE)
        self._applied()

    def over(self) -> None:
        """End the claim: the server has removed the lock."""
        self._claim.settled(LEFT)
