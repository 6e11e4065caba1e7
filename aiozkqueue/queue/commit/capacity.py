"""The capacity for commits in the bounded queues that they put to: acquired in all of them, or in none."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aiozkqueue.queue.state.claim import Claim
    from aiozkqueue.queue.state.hooks import CapacityLimit
    from aiozkqueue.queue.state.queue_state import QueueState
    from aiozkqueue.runtime.deadline import Deadline

    from .dispositions import Disposition
    from .write import AtomicWrite

    Limit: TypeAlias = CapacityLimit[AtomicWrite]
    Needs: TypeAlias = "dict[Limit, Need]"


class Need(NamedTuple):
    """The capacity that a commit needs in one queue."""

    more: int
    """The messages that it puts there, less those that it removes."""
    left: int
    """Its messages that are there afterwards: those that it puts, and those that it holds and releases."""


class Placed(Protocol):
    """The part of a put that matters for its capacity."""

    @property
    def state(self) -> QueueState:
        """The queue to put to."""
        ...


class Altered(Protocol):
    """The part of an alteration that matters for the capacity of a commit."""

    @property
    def state(self) -> QueueState:
        """The queue of the message."""
        ...

    @property
    def removes(self) -> bool:
        """Whether it removes the message."""
        ...


def needs_of(
    puts: Iterable[Placed],
    dispositions: Mapping[Claim, Disposition],
    alterations: Iterable[Altered] = (),
) -> Needs:
    """Return the capacity that a commit needs in each bounded queue to which it adds messages."""
    left: dict[Limit, int] = {}
    for put in puts:
        limit = put.state.snapshot.capacity
        if limit is not None:
            left[limit] = left.get(limit, 0) + 1
    counts = dict(left)
    for claim, disposition in dispositions.items() if counts else ():
        limit = claim.state.snapshot.capacity
        if limit in counts:
            if disposition.kind in ("consume", "dead"):
                counts[limit] -= 1
            else:
                left[limit] += 1
    for alteration in alterations if counts else ():
        limit = alteration.state.snapshot.capacity
        if limit in counts and alteration.removes:
            counts[limit] -= 1
    return {limit: Need(count, left[limit]) for limit, count in counts.items() if count > 0}


class Reservation:
    """The capacity of a commit in all queues that it puts to, until it is bound to a write or released."""

    __slots__ = ("_needs",)

    def __init__(self, needs: Needs) -> None:
        self._needs = needs

    def bind(self, atomic_write: AtomicWrite) -> None:
        """Release the capacity when an atomic write is settled."""
        for limit, need in self._needs.items():
            limit.bind(atomic_write, need.more)

    def release(self) -> None:
        """Release the capacity of a commit that is not sent."""
        for limit, need in self._needs.items():
            limit.release(need.more)


def try_reserve(needs: Needs) -> Reservation | None:
    """Acquire capacity in several queues, if it is known to be free in all of them."""
    acquired: Needs = {}
    for limit, need in needs.items():
        if not limit.try_acquire(need.more):
            Reservation(acquired).release()
            return None
        acquired[limit] = need
    return Reservation(needs)


async def reserve(needs: Needs, deadline: Deadline, generation: int | None = None) -> Reservation:
    """Acquire capacity in several queues: in all, or in none.

    If a queue is full, capacity acquired in other queues is released during the wait. If only this session has too many
    unanswered puts there, the acquired capacity is kept during the wait, unless some of it is in a queue that comes
    later by name. So no two commits wait for each other.

    Raises: as `CapacityLimit.acquire`.
    """
    limits = sorted(needs, key=attrgetter("queue"))
    acquired: list[Limit] = []

    def release_all() -> None:
        while acquired:
            limit = acquired.pop()
            limit.release(needs[limit].more)

    def on_wait(missing: Limit, *, full: bool) -> None:
        if full or any(limit.queue > missing.queue for limit in acquired):
            release_all()

    try:
        while (missing := next((limit for limit in limits if limit not in acquired), None)) is not None:
            await missing.acquire(*needs[missing], deadline, generation, partial(on_wait, missing))
            acquired.append(missing)
    except BaseException:  # a cancelled commit keeps no capacity either
        release_all()
        raise
    return Reservation(needs)


async def enter(atomic_write: AtomicWrite, puts: Iterable[Placed], deadline: Deadline) -> None:
    """Acquire capacity for the puts of an atomic write, waiting until the deadline; it is released with the write.

    The queues must be open. Raises: as `CapacityLimit.acquire`.
    """
    needs = needs_of(puts, {})
    if needs:
        (await reserve(needs, deadline)).bind(atomic_write)


async def reserve_again(atomic_write: AtomicWrite, needs: Needs, deadline: Deadline) -> None:
    """Acquire capacity for a write that was sent before its queue became bounded, and refused.

    The write holds no other capacity during the wait, as in `reserve`. Raises: as `CapacityLimit.acquire`.
    """
    if not all(limit.holds(atomic_write) for limit in needs):
        for limit in needs:
            limit.unbind(atomic_write)
        (await reserve(needs, deadline, atomic_write.part.generation)).bind(atomic_write)
