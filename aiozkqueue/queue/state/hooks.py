"""The hooks of a queue: interfaces by which later stages take part in its writes.

This stage imports none of the later ones. They define the claim, the disposition and the atomic write, so the
interfaces are generic in these types.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from aiozkqueue.runtime.deadline import Deadline
    from aiozkqueue.zookeeper import Operation, ZooKeeperError

ClaimT_contra = TypeVar("ClaimT_contra", contravariant=True)
DispositionT_contra = TypeVar("DispositionT_contra", contravariant=True)
WriteT_contra = TypeVar("WriteT_contra", contravariant=True)


class ItemFate(enum.Enum):
    """The state of an item after our lock on it is gone."""

    GONE = enum.auto()
    """The item has been deleted."""
    LEFT = enum.auto()
    """The item exists but cannot be claimed now: another lock delays its next attempt, or our session has ended."""
    FREE = enum.auto()
    """The item exists and can be claimed immediately."""


#: Aliases that save a lookup for each message.
GONE: Final = ItemFate.GONE
LEFT: Final = ItemFate.LEFT
FREE: Final = ItemFate.FREE


class ClaimListener(Protocol[ClaimT_contra]):
    """The dispatcher of a queue's claims, which is notified when a claim has ended."""

    def claim_settled(self, claim: ClaimT_contra, fate: ItemFate) -> None:
        """Handle the end of a claim's lock."""
        ...

    def retry_at(self, due: int, message_id: str) -> None:
        """Expect the end of a backoff at ``due`` (ms, ZooKeeper's time)."""
        ...

    def release_later(self, claim: ClaimT_contra, delay: float) -> None:
        """Hold a claim for ``delay`` seconds more, then release it."""
        ...


class RefusalHandler(Protocol):
    """Handles the refusal of an operation."""

    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Return a coroutine that repairs the cause before everything is sent again; None to send it again at once.

        Raises: QueueError: the cause cannot be repaired. No part of the multi is applied; the caller gets the error.
        """
        ...


class AttachedOp(NamedTuple):
    """An operation that a feature adds to the multi of a message."""

    operation: Operation
    handler: RefusalHandler
    """The handler of its refusal."""


class EndHook(Protocol[ClaimT_contra, DispositionT_contra]):
    """A feature that must be notified of every end of a message: a history, or a unique key that becomes free.

    Its operations are in the multi that ends the message, so they are applied exactly when the end is. A queue without
    end hooks only pays for a check of an empty tuple.
    """

    def weight(self, claim: ClaimT_contra, disposition: DispositionT_contra) -> int:
        """Return about how many bytes its operations take in a multi."""
        ...

    def attached_ops(
        self, claim: ClaimT_contra, disposition: DispositionT_contra, moment: Callable[[], int]
    ) -> Iterable[AttachedOp]:
        """Return the operations to add to this end, a release included. Called again when the multi is composed again.

        ``moment`` returns ZooKeeper's time (ms) of the multi, the same for everything in it.
        """
        ...


class OnWait(Protocol):
    """Called when a reservation has to wait."""

    def __call__(self, *, full: bool) -> None:
        """Report that there is no capacity.

        ``full``: the queue is full; otherwise this session has too many unanswered puts.
        """
        ...


class CapacityLimit(Protocol[WriteT_contra]):
    """The limit of a bounded queue: every put acquires capacity and releases it when its write is settled."""

    @property
    def queue(self) -> str:
        """The queue's name."""
        ...

    def try_acquire(self, count: int) -> bool:
        """Acquire capacity for ``count`` messages if it is known to be free and nothing waits for it."""
        ...

    async def acquire(
        self, count: int, left: int, deadline: Deadline, generation: int | None = None, on_wait: OnWait | None = None
    ) -> None:
        """Acquire capacity for ``count`` messages before the deadline; the write then owns ``left`` messages.

        Raises: QueueFullError, TransactionTooLargeError, SessionExpiredError, AccessDeniedError, SessionClosedError.
        """
        ...

    def release(self, count: int) -> None:
        """Release capacity."""
        ...

    def bind(self, atomic_write: WriteT_contra, count: int) -> None:
        """Release this capacity when the write is settled."""
        ...

    def unbind(self, atomic_write: WriteT_contra) -> None:
        """Release the capacity that a write holds, if it holds any."""
        ...

    def holds(self, atomic_write: WriteT_contra) -> bool:
        """Return whether a write holds capacity."""
        ...
