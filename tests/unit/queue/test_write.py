"""Waiting for the outcome of one write."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from aiozkqueue.errors import NotCommittedError
from aiozkqueue.queue.commit.register import FixedOperations
from aiozkqueue.queue.commit.write import AtomicWrite, Composition
from aiozkqueue.zookeeper import Delete

if TYPE_CHECKING:
    from aiozkqueue.queue.commit.group_commit import GroupCommitter
    from aiozkqueue.runtime.clock import ServerClock


class Ledger:
    """The part of a committer that an atomic write uses."""

    grace = 30.0

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.settled = 0

    def count_settled(self, number: int) -> None:
        self.settled += number


def submitted(ledger: Ledger) -> AtomicWrite:
    atomic_write = AtomicWrite("t", FixedOperations("t", (), lambda error: NotCommittedError(str(error))))
    atomic_write.committer = cast("GroupCommitter", ledger)
    return atomic_write


async def test_several_tasks_can_wait_for_a_write_and_each_can_be_cancelled() -> None:
    ledger = Ledger()
    atomic_write = submitted(ledger)
    waiting = [asyncio.create_task(atomic_write.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    waiting[1].cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)  # a cancelled caller still waits for the outcome
    atomic_write.succeed(None)
    assert await asyncio.gather(waiting[2]) == [None]
    assert all(
        isinstance(result, asyncio.CancelledError)
        for result in await asyncio.gather(*waiting[:2], return_exceptions=True)
    )
    assert ledger.settled == 1


async def test_each_watcher_of_a_write_is_notified_once_and_in_order() -> None:
    notified: list[str] = []

    def first(settled: AtomicWrite) -> None:
        assert settled.settled
        notified.append("first")

    atomic_write = submitted(Ledger())
    atomic_write.watch(first)
    atomic_write.watch(lambda _: notified.append("second"))
    waiting = asyncio.create_task(atomic_write.wait())
    await asyncio.sleep(0)
    atomic_write.fail(NotCommittedError("no"))
    atomic_write.succeed(None)
    await waiting
    assert notified == ["first", "second"]


def test_a_handler_answers_for_no_operation_of_another_write() -> None:
    """Puts are composed after the operations of all writes, so the last handler of a write may have none yet."""
    first, second = (FixedOperations("t", (), lambda error: NotCommittedError(str(error))) for _ in range(2))
    composition = Composition(cast("ServerClock", None))
    composition.begin(AtomicWrite("1", first))
    composition.add(Delete("/a"), first)
    composition.answer_with(first)
    composition.begin(AtomicWrite("2", second))
    composition.operations.append(Delete("/b"))
    assert composition.handler_of(0, 0) == (first, 0)
    assert composition.handler_of(1, 1) is None
