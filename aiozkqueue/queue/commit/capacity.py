"""How commits get room in the queues with a size that they put to: in all of them, or in none."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aiozkqueue.queue.put.capacity import CapacityGate
    from aiozkqueue.queue.runtime.deadline import Deadline
    from aiozkqueue.queue.state.claim import Claim

    from .alterations import TransactionalAlteration
    from .dispositions import Disposition
    from .puts import Put
    from .write import AtomicWrite


def needs_of(
    puts: Iterable[Put], dispositions: Mapping[Claim, Disposition], beside: Iterable[TransactionalAlteration] = ()
) -> dict[CapacityGate, int]:
    """How many messages more a commit leaves in each bounded queue: what it takes from there makes room."""
    needs: dict[CapacityGate, int] = {}
    for put in puts:
        room = put.store.room
        if room is not None:
            needs[room] = needs.get(room, 0) + 1
    for claim, disposition in dispositions.items() if needs else ():
        room = claim.store.room
        if room in needs and disposition.kind in ("consume", "dead"):
            needs[room] -= 1
    for one in beside if needs else ():
        room = one.store.room
        if room in needs and one.removes:
            needs[room] -= 1
    return {room: count for room, count in needs.items() if count > 0}


class Reservation:
    """The room that a commit has taken, in all queues that it puts to: until it is passed on, or given back."""

    __slots__ = ("_taken",)

    def __init__(self, taken: dict[CapacityGate, int]) -> None:
        self._taken = taken

    def passed(self, atomic_write: AtomicWrite) -> None:
        """Have it given back when a settlement is settled."""
        for room, count in self._taken.items():
            room.passed(atomic_write, count)

    def leave(self) -> None:
        """Give it back, for a commit that is not sent."""
        for room, count in self._taken.items():
            room.leave(count)


def try_admit(needs: dict[CapacityGate, int]) -> Reservation | None:
    """Take room in several queues if it is known to be there in all."""
    held: dict[CapacityGate, int] = {}
    for room, count in needs.items():
        if not room.try_enter(count):
            Reservation(held).leave()
            return None
        held[room] = count
    return Reservation(needs)


async def ensure_lane(needs: dict[CapacityGate, int], patience: Deadline, generation: int | None = None) -> Reservation:
    """Take room in several queues, all or none.

    What is held while another is looked into is given back when that one is full. When it is only this session that
    has too much under way, it is held for as long as that takes; but not while a queue before those held, by name, is
    waited for: so no two wait for each other.

    Raises: as `CapacityGate.enter`.
    """
    rooms = sorted(needs, key=_name)
    held: list[CapacityGate] = []

    def give_back() -> None:
        while held:
            room = held.pop()
            room.leave(needs[room])

    def waits(lacking: CapacityGate, *, full: bool) -> None:
        if full or any(room.queue > lacking.queue for room in held):
            give_back()

    try:
        while (lacking := next((room for room in rooms if room not in held), None)) is not None:
            await lacking.enter(needs[lacking], patience, generation, partial(waits, lacking))
            held.append(lacking)
    except BaseException:  # who is cancelled keeps none either
        give_back()
        raise
    return Reservation(needs)


async def enter(atomic_write: AtomicWrite, puts: Iterable[Put], patience: Deadline) -> None:
    """Take room for what a settlement is about to put, waiting with patience; it leaves when it is settled.

    The queues put to have been opened. Raises: as `CapacityGate.enter`.
    """
    needs = needs_of(puts, {})
    if needs:
        (await ensure_lane(needs, patience)).passed(atomic_write)


async def readmit(atomic_write: AtomicWrite, needs: dict[CapacityGate, int], patience: Deadline) -> None:
    """Let in what was sent before its queue got a size; while it waits it has room in no other, as in `ensure_lane`.

    Nothing of it is under way: it was refused. Raises: as `CapacityGate.enter`.
    """
    if not all(room.holds(atomic_write) for room in needs):
        for room in needs:
            room.out(atomic_write)
        (await ensure_lane(needs, patience, atomic_write.generation)).passed(atomic_write)


def _name(room: CapacityGate) -> str:
    return room.queue
