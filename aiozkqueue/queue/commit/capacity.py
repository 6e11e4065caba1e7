"""The room of commits in the bounded queues that they put to: acquired in all of them, or in none."""

from __future__ import annotations

from functools import partial
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
    """The room that a commit needs in one queue."""

    more: int
    """The messages that it puts there, less those that it removes."""
    left: int
    """Its messages that are there afterwards: those that it puts, and those that it holds and releases."""


class Placed(Protocol):
    """The part of a put that matters for its room."""

    @property
    def state(self) -> QueueState:
        """The queue to put to."""
        ...


class Altered(Protocol):
    """The part of an alteration that matters for the room of a commit."""

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
    """Return the room that a commit needs in each bounded queue to which it adds messages."""
    left: dict[Limit, int] = {}
    for put in puts:
        room = put.state.snapshot.capacity
        if room is not None:
            left[room] = left.get(room, 0) + 1
    counts = dict(left)
    for claim, disposition in dispositions.items() if counts else ():
        room = claim.state.snapshot.capacity
        if room in counts:
            if disposition.kind in ("consume", "dead"):
                counts[room] -= 1
            else:
                left[room] += 1
    for alteration in alterations if counts else ():
        room = alteration.state.snapshot.capacity
        if room in counts and alteration.removes:
            counts[room] -= 1
    return {room: Need(count, left[room]) for room, count in counts.items() if count > 0}


class Reservation:
    """The room of a commit in all queues that it puts to, until it is bound to a write or released."""

    __slots__ = ("_needs",)

    def __init__(self, needs: Needs) -> None:
        self._needs = needs

    def bind(self, atomic_write: AtomicWrite) -> None:
        """Release the room when an atomic write is settled."""
        for room, need in self._needs.items():
            room.bind(atomic_write, need.more)

    def release(self) -> None:
        """Release the room of a commit that is not sent."""
        for room, need in self._needs.items():
            room.release(need.more)


def try_reserve(needs: Needs) -> Reservation | None:
    """Acquire room in several queues, if it is known to be free in all of them."""
    acquired: Needs = {}
    for room, need in needs.items():
        if not room.try_acquire(need.more):
            Reservation(acquired).release()
            return None
        acquired[room] = need
    return Reservation(needs)


async def reserve(needs: Needs, deadline: Deadline, generation: int | None = None) -> Reservation:
    """Acquire room in several queues: in all, or in none.

    If a queue is full, the room acquired in other queues is released during the wait. If only this session has too many
    unanswered puts there, the acquired room is kept during the wait, unless some of it is in a queue that comes later
    by name. So no two commits wait for each other.

    Raises: as `CapacityLimit.acquire`.
    """
    rooms = sorted(needs, key=_name)
    acquired: list[Limit] = []

    def release_all() -> None:
        while acquired:
            room = acquired.pop()
            room.release(needs[room].more)

    def on_wait(missing: Limit, *, full: bool) -> None:
        if full or any(room.queue > missing.queue for room in acquired):
            release_all()

    try:
        while (missing := next((room for room in rooms if room not in acquired), None)) is not None:
            await missing.acquire(*needs[missing], deadline, generation, partial(on_wait, missing))
            acquired.append(missing)
    except BaseException:  # a cancelled commit keeps no room either
        release_all()
        raise
    return Reservation(needs)


async def enter(atomic_write: AtomicWrite, puts: Iterable[Placed], deadline: Deadline) -> None:
    """Acquire room for the puts of an atomic write, waiting until the deadline; it is released with the write.

    The queues must be open. Raises: as `CapacityLimit.acquire`.
    """
    needs = needs_of(puts, {})
    if needs:
        (await reserve(needs, deadline)).bind(atomic_write)


async def reserve_again(atomic_write: AtomicWrite, needs: Needs, deadline: Deadline) -> None:
    """Acquire room for a write that was sent before its queue became bounded, and refused.

    The write holds no other room during the wait, as in `reserve`. Raises: as `CapacityLimit.acquire`.
    """
    if not all(room.holds(atomic_write) for room in needs):
        for room in needs:
            room.unbind(atomic_write)
        (await reserve(needs, deadline, atomic_write.part.generation)).bind(atomic_write)


def _name(room: Limit) -> str:
    return room.queue
