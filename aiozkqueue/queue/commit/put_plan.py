"""Put plans: the additions of a put with options to its create, such as another place or further operations.

A put without options has no plan, and only pays for the check. Each feature with a part in a put contributes to the
plan: a `Place` is the parent and name of the item; a `PutHook` is one operation that is applied if and only if the
create is, and handles its own refusal. (For operations attached to the *end* of a message see `state.hooks.EndHook`.)

The plan is made from the options when the put is prepared (`aiozkqueue.queue.put.prepare`). When the put is sent,
`QueueSnapshot.transform_put` adds what depends on the queue's configuration: only then is the queue open.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from aiozkqueue.zookeeper import Operation, ZooKeeperError


class PutHook(ABC):
    """One operation attached to the create of an item."""

    __slots__ = ()

    #: The approximate size in a multi, in bytes.
    weight: int = 200

    @property
    def ready(self) -> bool:
        """Whether `prepare` has nothing to do."""
        return True

    async def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Do the work that must precede the sending of the put. The queue is open."""

    @property
    def dropped(self) -> bool:
        """Whether the put is left out of the multi, and settled with the rest: an equal message exists already."""
        return False

    @abstractmethod
    def operation(self, item: str) -> Operation:
        """Return the operation to send with the item, whose path is given without its sequence number.

        This is called again for every attempt except an exact repetition.
        """

    @abstractmethod
    def repair(self, operation: Operation, error: ZooKeeperError) -> Coroutine[object, object, None] | None:
        """Handle a refusal that this operation caused; no part of the multi was applied.

        Raise a `QueueError` to fail the put. Return a coroutine that repairs the cause before the put is sent again, or
        None to send it again immediately, because the operation has changed or has ``dropped`` the put.
        """


class Place(Protocol):
    """Where an item is created, and under which name."""

    @property
    def ready(self) -> bool:
        """Whether `prepare` has nothing to do."""
        ...

    @property
    def needs_time(self) -> bool:
        """Whether `path` computes a moment in ZooKeeper's time, which must have been measured recently."""
        ...

    async def prepare(self) -> None:
        """Obtain the data that the put needs before it is sent. The queue is open."""
        ...

    def path(self, prefix: str) -> str:
        """Return the path of the item, relative to the queue and without the sequence.

        This is called again for every attempt except an exact repetition. ``prefix`` is the put's name so far.
        """
        ...


@dataclass(slots=True, eq=False)
class PutPlan:
    """The additions of one put to its create."""

    hooks: tuple[PutHook, ...] = ()
    """Operations applied in this order before the create."""
    place: Place | None = None
    """The place; None: the next lane in rotation."""
    put_before: int | None = None
    """When the message that is restored was put, ms; None: it is put now, and the session is its producer."""

    @property
    def dropped(self) -> bool:
        """Whether a hook has dropped the put."""
        return any(hook.dropped for hook in self.hooks)

    def joined_with(self, other: Self) -> Self:
        """Return the union of two plans; the other's place takes precedence."""
        return replace(self, hooks=(*self.hooks, *other.hooks), place=other.place or self.place)

    @property
    def weight(self) -> int:
        """The approximate size of the hooks' operations in a multi, in bytes."""
        return sum(hook.weight for hook in self.hooks)

    @property
    def ready(self) -> bool:
        """Whether the put can be sent."""
        return (self.place is None or self.place.ready) and all(hook.ready for hook in self.hooks)

    @property
    def needs_time(self) -> bool:
        """Whether its next operations have moments in ZooKeeper's time; see `Place`."""
        return self.place is not None and self.place.needs_time

    async def prepare(self) -> None:
        """Obtain the data that the put needs before it is sent."""
        for hook in self.hooks:
            if not hook.ready:
                await hook.prepare()
        if self.place is not None and not self.place.ready:
            await self.place.prepare()


def join_plans(plans: Iterable[PutPlan | None]) -> PutPlan | None:
    """Return the union of the given plans; None for a put without a plan."""
    union: PutPlan | None = None
    for plan in plans:
        if plan is not None:
            union = plan if union is None else union.joined_with(plan)
    return union
