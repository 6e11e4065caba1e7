"""Operations attached to the end of a message, in the multi that ends it.

A feature that must react to every end (history, unique keys) adds an `EndHook` to its queue's state. The attached
operations are applied exactly if the end is. If one is refused, its owner repairs the cause. A queue without hooks pays
only for a look at an empty tuple.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.zookeeper import Operation, ZooKeeperError

    from .dispositions import Disposition


class RefusalHandler(Protocol):
    """The handler of refused operations."""

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Return a coroutine that repairs the cause, after which all is sent again; None: send again immediately.

        Raises: QueueError: no repair is known. Nothing of the multi is applied, and the error goes to the caller.
        """


class AttachedOp(NamedTuple):
    """One operation attached to a message's own."""

    operation: Operation
    owner: RefusalHandler


class EndHook(Protocol):
    """The source of operations attached to the ends of a queue's messages."""

    def weight(self, claim: Claim, disposition: Disposition) -> int:
        """Return the approximate size of its operations in a multi, in bytes."""
        ...

    def attached_ops(self, claim: Claim, disposition: Disposition, moment: Callable[[], int]) -> Iterable[AttachedOp]:
        """Return the operations for this end, or for this release; called again for each new attempt of the multi.

        ``moment`` returns ZooKeeper's time (ms) of the multi, the same for all its parts.
        """
        ...
