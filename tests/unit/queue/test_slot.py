"""Commit slots, with servers whose replies to a write are impossible or old."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aiozkqueue.queue.commit.slot import MultiFate, Slot
from aiozkqueue.runtime.clock import Clock, ServerClock
from aiozkqueue.zookeeper import Check, ConnectionLossError, MultiError, NodeExistsError, SetData, Stat

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.timeout(30)


class Odd:
    """A client whose server returns a path instead of the stat of a znode."""

    last_zxid = 2 << 32

    def __init__(self) -> None:
        self.written: list[int] = []

    async def multi(self, operations: Sequence[Any], **_: object) -> list[object]:
        if isinstance(operations[0], SetData):
            self.written.append(operations[0].version)
        return ["/no/stat"] * len(operations)

    async def exists(self, _: str) -> Stat:
        return Stat(0, 0, 0, 0, len(self.written) + 41, 0, 0, 0, 0, 0, 0)


class NoClock:
    """A clock that ignores samples."""

    def local(self) -> float:
        return 0.0

    def observe(self, *_: object) -> None:
        """Ignore a sample of `ServerClock`."""


class Written:
    """A client whose server has the slot, which a leader of some epoch has written now or earlier."""

    last_zxid = 2 << 32
    generation = 1

    def __init__(self, epoch: int, *, now: bool = False) -> None:
        self._now = now
        self._stat = Stat(1, epoch << 32, 1000, 9_000_000, 1, 0, 0, 0, 0, 0, 0)

    async def multi(self, operations: Sequence[Any], **_: object) -> list[object]:
        if isinstance(operations[0], SetData):
            raise ConnectionLossError("lost")
        if self._now:
            return ["/slot-0"]
        raise MultiError(0, NodeExistsError("/slot-0"))

    async def exists(self, _: str) -> Stat:
        return self._stat


class Paths:
    """The paths of one client."""

    def slot(self, number: int) -> str:
        return f"/slot-{number}"


async def test_an_unexpected_slot_version_is_read_again_and_the_session_continues() -> None:
    zookeeper = Odd()
    slot = Slot(zookeeper, Paths(), 0, NoClock())  # type: ignore[arg-type]  # the parts that are used
    for _ in range(2):
        if not slot.ready:
            assert await slot.prepare(1)
        sent = await slot.finish(slot.begin([Check("/")], 1, needs_results=False))
        assert sent.fate is MultiFate.APPLIED
    assert zookeeper.written == [41, 42]


@pytest.mark.parametrize("now", [False, True])
@pytest.mark.parametrize("epoch", [1, 2])
async def test_a_slot_shows_the_time_if_this_leader_has_just_created_it(epoch: int, *, now: bool) -> None:
    zookeeper: Any = Written(epoch, now=now)
    clock = ServerClock(Clock(), zookeeper)
    slot = Slot(zookeeper, Paths(), 0, clock)  # type: ignore[arg-type]  # the part that is used
    assert await slot.prepare(1)
    assert slot.ready
    assert clock.sampled is (epoch == 2 and now)


async def test_a_slot_is_prepared_again_after_a_measurement_without_a_reply() -> None:
    zookeeper: Any = Written(2)
    slot = Slot(zookeeper, Paths(), 0, ServerClock(Clock(), zookeeper))  # type: ignore[arg-type]  # the part that is used
    assert await slot.prepare(1)
    await slot.sample_clock(1)
    assert not slot.ready
    assert await slot.prepare(1)
    assert slot.ready
