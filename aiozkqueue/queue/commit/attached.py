"""What goes with the end of a message, in the multi that ends it.

A feature that has to know of every end (a history, a key that comes free) gives its queue's store an `EndHook`. Its
companions are applied exactly when the end is, and never otherwise; one that is refused is its owner's to mend.
A queue without attendants pays one look at an empty tuple.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.zookeeper import Operation, ZooKeeperError

    from .dispositions import Disposition


class RefusalHandler(Protocol):
    """Who answers when an operation is refused."""

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Return what mends the cause, before all is sent again; None when that can be done at once.

        Raises: QueueError: nothing known mends this; nothing of the multi is applied, and the caller gets it.
        """


class AttachedOp(NamedTuple):
    """One operation beside a message's own."""

    operation: Operation
    owner: RefusalHandler


class EndHook(Protocol):
    """Who adds companions to the ends of a queue's messages."""

    def weight(self, claim: Claim, disposition: Disposition) -> int:
        """About how many bytes its companions take in a multi."""
        ...

    def attached_ops(self, claim: Claim, disposition: Disposition, moment: Callable[[], int]) -> Iterable[AttachedOp]:
        """Return what goes with this end, a release included; asked again when the multi is made anew.

        ``moment`` gives ZooKeeper's time (ms) of the multi, the same for all that is in it.
        """
        ...
