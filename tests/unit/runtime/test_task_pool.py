"""The pool of tasks that run several jobs in turn."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import ContextVar

import pytest

from aiozkqueue.runtime.task_pool import TaskPool


class Uncomparable:
    """A value whose comparison fails, as that of arrays does."""

    def __eq__(self, other: object) -> bool:
        raise ValueError

    __hash__ = object.__hash__


tenant: ContextVar[object] = ContextVar("tenant", default=None)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Works:
    """A pool with a gate for each job, and the tasks that its owner starts when the pool requests one."""

    def __init__(self) -> None:
        self.task_pool = TaskPool(self.work)
        self.begun: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def work(self, job: str) -> None:
        self.begun.append(job)
        await self.gates.setdefault(job, asyncio.Event()).wait()
        if job == "fails":
            raise KeyError(job)

    def give(self, *jobs: str) -> None:
        for job in jobs:
            if not self.task_pool.submit(job):
                self.tasks.append(asyncio.create_task(self.task_pool.work()))

    async def end(self, *jobs: str) -> None:
        for job in jobs:
            self.gates[job].set()
        await settle()

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, KeyError):
                await task


async def test_the_pool_has_one_task_for_each_concurrent_job() -> None:
    works = Works()
    works.give("1", "2")
    await settle()
    assert works.begun == ["1", "2"]
    await works.end("1", "2")
    works.give("3", "4", "5")
    await settle()
    assert works.begun == ["1", "2", "3", "4", "5"]
    assert len(works.tasks) == 3
    assert not works.task_pool.jobs
    await works.stop()


async def test_a_woken_task_whose_job_another_task_took_gets_the_next_job() -> None:
    works = Works()
    works.give("1", "2")
    await settle()
    await works.end("1")
    works.gates["2"].set()
    works.give("3")  # one task is idle and is woken; the other ends at the same moment
    await settle()
    works.give("4")
    await settle()
    assert works.begun == ["1", "2", "3", "4"]
    assert len(works.tasks) == 2
    await works.stop()


async def test_idle_tasks_end_and_woken_tasks_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aiozkqueue.runtime.task_pool.RESTS", 0.1)
    works = Works()
    works.give("1", "2", "3")
    await settle()
    await works.end("1", "2", "3")
    for number in range(30):
        works.give(f"busy {number}")
        await settle()
        await works.end(f"busy {number}")
        await asyncio.sleep(0.01)
    assert [task.done() for task in works.tasks].count(False) == 1
    async with asyncio.timeout(30):
        await asyncio.gather(*works.tasks)
    works.give("last")
    await settle()
    assert works.begun[-1] == "last"
    assert len(works.tasks) == 4
    await works.stop()


async def test_a_task_cancelled_while_idle_gets_no_job() -> None:
    works = Works()
    works.give("1")
    await settle()
    await works.end("1")
    works.tasks[0].cancel()
    works.give("2")
    await settle()
    assert works.begun == ["1", "2"]
    assert len(works.tasks) == 2
    await works.stop()


async def test_close_returns_unstarted_jobs_when_all_tasks_are_cancelled() -> None:
    works = Works()
    works.give("1")
    await settle()
    await works.end("1")
    works.give("2", "3")
    for task in works.tasks:
        task.cancel()
    await settle()
    assert works.begun == ["1"]
    assert works.task_pool.close() == ["2", "3"]
    await works.stop()


async def test_closing_the_pool_ends_idle_tasks_at_once_and_busy_ones_after_their_job() -> None:
    works = Works()
    works.give("1", "2")
    await settle()
    await works.end("1")
    assert works.task_pool.close() == []
    await settle()
    assert [task.done() for task in works.tasks] == [True, False]
    await works.end("2")
    assert works.tasks[1].done()


async def test_a_failed_job_ends_only_its_own_task_with_that_error() -> None:
    works = Works()
    works.give("fails", "1")
    await settle()
    await works.end("fails")
    with pytest.raises(KeyError):
        await works.tasks[0]
    await works.end("1")
    works.give("2")
    await settle()
    assert works.begun == ["fails", "1", "2"]
    assert len(works.tasks) == 2
    await works.stop()


async def test_a_cancellation_that_a_job_swallowed_does_not_affect_the_next_job() -> None:
    """A job that checks whether its task is being cancelled sees only its own cancellation."""
    pending: list[int] = []

    async def work(_: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        pending.append(task.cancelling())
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)

    task_pool = TaskPool(work)
    task_pool.submit("1")
    working = asyncio.create_task(task_pool.work())
    await settle()
    assert task_pool.submit("2")
    await settle()
    assert pending == [0, 0]
    task_pool.close()
    await working


@pytest.mark.parametrize("outer", [None, "listener", Uncomparable()])
async def test_a_job_does_not_get_the_context_variables_of_another(outer: object) -> None:
    seen: list[object] = []

    async def work(job: str) -> None:
        seen.append(tenant.get())
        token = tenant.set(Uncomparable())
        await asyncio.sleep(0)
        if job == "resets":
            tenant.reset(token)

    tenant.set(outer)
    task_pool = TaskPool(work)
    tasks: list[asyncio.Task[None]] = []
    for job in ("resets", "sets", "sets", "resets"):
        if not task_pool.submit(job):
            tasks.append(asyncio.create_task(task_pool.work()))
        await settle()
    assert seen == [outer] * 4
    assert len(tasks) == 3  # the first one has run two jobs
    task_pool.close()
    await asyncio.gather(*tasks)


async def test_jobs_that_wait_while_a_job_changes_a_variable_are_run() -> None:
    done: list[int] = []

    async def work(job: int) -> None:
        tenant.set(job)
        await asyncio.sleep(0)
        done.append(job)

    task_pool = TaskPool(work)
    tasks: list[asyncio.Task[None]] = []
    for job in range(20):
        if not task_pool.submit(job):
            tasks.append(asyncio.create_task(task_pool.work()))
        if job % 3 == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert sorted(done) == list(range(20))
