"""Defects in bounded queues."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aiozkqueue.queue.put import capacity
from tests.simulation.mutations import mutation
from tests.simulation.workload import run

if TYPE_CHECKING:
    import pytest

    from aiozkqueue.queue.commit.write import AtomicWrite

of_bounded = partial(run, feature="bounded")


@mutation(of_bounded)
def credits_released_twice(patch: pytest.MonkeyPatch) -> None:
    unbind = capacity.CapacityGate.unbind

    def twice(self: capacity.CapacityGate, atomic_write: AtomicWrite) -> None:
        self.release(self._bound.get(atomic_write, 0))
        unbind(self, atomic_write)

    patch.setattr(capacity.CapacityGate, "unbind", twice)


@mutation(of_bounded)
def claimed_messages_not_counted(patch: pytest.MonkeyPatch) -> None:
    size = capacity.CapacityGate._size

    async def without_claimed(self: capacity.CapacityGate, generation: int) -> int | None:
        found = await size(self, generation)
        locks = await self._zookeeper.children(self._state.paths.locks, generation=generation)
        return None if found is None else found - len(locks)

    patch.setattr(capacity.CapacityGate, "_size", without_claimed)


@mutation(of_bounded)
def unfinished_puts_not_counted(patch: pytest.MonkeyPatch) -> None:
    async def look(self: capacity.CapacityGate, limit: int, generation: int) -> bool:
        size = await self._size(generation)
        self._credits = 0 if size is None else max(0, limit - size)
        self._counted_at = self._clock.monotonic()
        return size is not None

    patch.setattr(capacity.CapacityGate, "_recount", look)
