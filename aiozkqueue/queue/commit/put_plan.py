"""What a put that is not plain adds to its create: another place, and operations beside it in the same multi.

A plain put has no plan, and costs one test for it. Every capability that has a part in a put contributes to its plan:
a `Place` says where the item is created and under which name, each `PutHook` is one operation that is applied with
the create or not at all, and answers for its refusal. (What goes with the *end* of a message: `attached_ops`.)

The options of a put make its plan when it is prepared (`putting`). What depends on the queue's configuration is added
by ``QueueState.transform_put`` when the put is sent, since only then the queue is known to be open.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from aiozkqueue.zookeeper import Operation, ZooKeeperError


class PutHook(ABC):
    """One operation beside the create of an item."""

    __slots__ = ()

    #: About how many bytes it takes in a multi.
    weight: int = 200

    @property
    def ready(self) -> bool:
        """Whether `prepare` has nothing left to do."""
        return True

    async def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Do what must be done before the put is sent; the queue is open."""

    @property
    def dropped(self) -> bool:
        """Whether nothing of the put is sent any more, and it is settled with the rest: what it would add is there."""
        return False

    @abstractmethod
    def operation(self) -> Operation:
        """Return what to send; called anew for every attempt that is not a repetition of the last."""

    @abstractmethod
    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Answer to a refusal that this operation caused; nothing of the multi was applied.

        Raise what the caller gets (a `QueueError`); or return None when the plan has changed (this says something
        else now, or has ``dropped`` the put) and the put is to go again, or a coroutine that mends the cause first.
        """

    def settled(self, error: BaseException | None) -> None:  # noqa: B027 - most have nothing to note
        """Take note of the put's fate: None when it was applied. Called once, for every plan that was submitted."""


class Place(Protocol):
    """Where an item is created."""

    @property
    def ready(self) -> bool:
        """Whether `prepare` has nothing left to do."""
        ...

    async def prepare(self) -> None:
        """Find out what must be known before the put is sent; the queue is open."""
        ...

    def path(self, prefix: str) -> str:
        """Return the path to create the item under, relative to the queue and without the sequence.

        Called anew for every attempt that is not a repetition of the last; ``prefix`` is the put's name so far.
        """
        ...


@dataclass(slots=True, eq=False)
class PutPlan:
    """What one put adds to its create."""

    attached_ops: tuple[PutHook, ...] = ()
    """Applied in this order, before the create."""
    place: Place | None = None
    """None: the lane whose turn it is."""

    @property
    def dropped(self) -> bool:
        """Whether one of the companions has dropped the put."""
        return any(attached_op.dropped for attached_op in self.attached_ops)

    def joined(self, other: Self | None) -> Self:
        """Return the plan of both; the other's place rules when it has one."""
        if other is None:
            return self
        return replace(self, attached_ops=(*self.attached_ops, *other.attached_ops), place=other.place or self.place)

    @property
    def weight(self) -> int:
        """About how many bytes the companions take in a multi."""
        return sum(attached_op.weight for attached_op in self.attached_ops)

    @property
    def ready(self) -> bool:
        """Whether it can be sent."""
        return (self.place is None or self.place.ready) and all(one.ready for one in self.attached_ops)

    async def prepare(self) -> None:
        """Find out what must be known before it is sent."""
        for attached_op in self.attached_ops:
            if not attached_op.ready:
                await attached_op.prepare()
        if self.place is not None and not self.place.ready:
            await self.place.prepare()


def join(plans: Iterable[PutPlan | None]) -> PutPlan | None:
    """Return the plan of all that there are; None for a plain put."""
    joined: PutPlan | None = None
    for plan in plans:
        if plan is not None:
            joined = plan if joined is None else joined.joined(plan)
    return joined
