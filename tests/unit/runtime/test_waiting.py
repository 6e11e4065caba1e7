"""Waiting that survives cancellations, and the tasks that a session owns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import anyio
import pytest

from aiozkqueue.errors import SessionClosedError
from aiozkqueue.runtime.tasks import TaskOwner, wait_settled

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


async def spin() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Waiting:
    """A task that waits for a future with ``wait_settled``, inside a given context."""

    def __init__(self, grace: float | None = None, limit: float | None = None) -> None:
        self.future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.returned = False
        self._grace = grace
        self._limit = limit

    async def wait(self) -> None:
        await wait_settled(self.future, grace=self._grace, limit=self._limit)
        self.returned = True


async def test_the_wait_returns_when_the_future_is_done_and_leaves_its_result() -> None:
    waiting = Waiting()
    task = asyncio.create_task(waiting.wait())
    await spin()
    waiting.future.set_exception(KeyError())
    await task
    assert isinstance(waiting.future.exception(), KeyError)
    await wait_settled(waiting.future)  # the future is already done


@pytest.mark.parametrize("times", [1, 2, 5])
async def test_a_native_cancellation_takes_effect_after_the_future_is_done(times: int) -> None:
    waiting = Waiting()
    task = asyncio.create_task(waiting.wait())
    for _ in range(times):
        await spin()
        assert task.cancel()
    await spin()
    assert not task.done()
    waiting.future.set_result(1)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not waiting.returned
    assert waiting.future.result() == 1


async def by_timeout(waiting: Waiting) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await waiting.wait()


async def by_wait_for(waiting: Waiting) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waiting.wait(), 0.02)


async def by_scope(waiting: Waiting) -> None:
    with anyio.move_on_after(0.02) as scope:
        await waiting.wait()
    assert scope.cancelled_caught


async def by_task_group(waiting: Waiting) -> None:
    async def fail() -> None:
        await asyncio.sleep(0.02)
        raise KeyError

    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(waiting.wait())
            group.create_task(fail())


@pytest.mark.parametrize("leave", [by_timeout, by_wait_for, by_scope, by_task_group])
async def test_every_kind_of_cancellation_takes_effect_after_the_future_is_done(
    leave: Callable[[Waiting], Awaitable[None]],
) -> None:
    waiting = Waiting()
    asyncio.get_running_loop().call_later(0.5, waiting.future.set_result, 1)
    await leave(waiting)
    assert waiting.future.result() == 1
    assert not waiting.returned


async def test_a_cancelled_wait_ends_after_the_grace_and_leaves_the_future_running() -> None:
    waiting = Waiting(grace=0.1)
    task = asyncio.create_task(waiting.wait())
    await spin()
    start = asyncio.get_running_loop().time()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.get_running_loop().time() - start > 0.08
    assert not waiting.future.done()


async def test_the_grace_applies_only_after_a_cancellation() -> None:
    waiting = Waiting(grace=0.01)
    task = asyncio.create_task(waiting.wait())
    await asyncio.sleep(0.1)
    assert not task.done()
    waiting.future.set_result(1)
    await task


async def test_a_limit_ends_the_wait_without_an_error() -> None:
    waiting = Waiting(limit=0.05)
    await waiting.wait()
    assert waiting.returned
    assert not waiting.future.done()


async def test_a_cancellation_does_not_change_the_limit() -> None:
    waiting = Waiting(limit=0.3)
    start = asyncio.get_running_loop().time()
    task = asyncio.create_task(waiting.wait())
    await spin()
    task.cancel()
    ended, _ = await asyncio.wait((task,), timeout=30)
    assert asyncio.get_running_loop().time() - start > 0.28
    waiting.future.cancel()  # end the remaining waits
    assert ended
    assert task.cancelled()


async def test_a_cancelled_future_counts_as_done() -> None:
    waiting = Waiting()
    task = asyncio.create_task(waiting.wait())
    await spin()
    waiting.future.cancel()
    await task
    assert waiting.returned


async def test_an_owners_tasks_are_cancelled_when_it_is_closed_from_any_task() -> None:
    owner = TaskOwner("owner")
    await asyncio.create_task(owner.start())
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            cancelled.set()

    owner.spawn(work, name="work")
    await spin()
    await asyncio.create_task(owner.close())
    assert cancelled.is_set()
    assert owner.failure is None
    with pytest.raises(SessionClosedError, match="has been closed"):
        owner.spawn(work, name="late")


async def test_the_error_of_a_failed_task_is_kept_and_reported() -> None:
    reported: list[BaseException] = []
    failed = asyncio.Event()

    def report(error: BaseException) -> None:
        reported.append(error)
        failed.set()

    owner = TaskOwner("owner", report)
    await owner.start()

    async def fail() -> None:
        raise KeyError("mine")

    owner.spawn(fail, name="fail")
    await asyncio.wait_for(failed.wait(), 30)
    assert isinstance(owner.failure, KeyError)
    assert reported == [owner.failure]
    await owner.close()


@pytest.mark.parametrize("whole", [False, True])
async def test_a_task_cancelled_by_others_ends_all_tasks_and_is_reported(*, whole: bool) -> None:
    reported: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    owner = TaskOwner("owner", reported.set_result)
    await owner.start()
    tasks: list[asyncio.Task[object] | None] = []
    ended: list[int] = []

    async def work(number: int) -> None:
        tasks.append(asyncio.current_task())
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(number)

    for number in range(2):
        owner.spawn(work, number, name="work")
    await spin()
    struck = owner._task if whole else tasks[0]
    assert struck is not None
    struck.cancel()
    assert "cancelled by another task" in str(await asyncio.wait_for(reported, 30))
    assert sorted(ended) == [0, 1]
    assert owner.failure is reported.result()
    await owner.close()
