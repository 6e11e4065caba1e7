"""Tasks kept for more than one piece of work."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from aiozkqueue.queue.runtime.task_pool import TaskPool


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Works:
    """A crew, with a gate for each job, and the tasks that its owner starts when it asks for one more."""

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


async def test_jobs_are_done_at_once_by_as_many_tasks_as_there_have_been_jobs_at_a_time() -> None:
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


async def test_a_job_that_one_takes_that_has_just_done_its_last_leaves_who_was_roused_for_it_to_the_next() -> None:
    works = Works()
    works.give("1", "2")
    await settle()
    await works.end("1")
    works.gates["2"].set()
    works.give("3")  # one rests and is roused; the other comes to its end in the same moment
    await settle()
    works.give("4")
    await settle()
    assert works.begun == ["1", "2", "3", "4"]
    assert len(works.tasks) == 2
    await works.stop()


async def test_those_that_nothing_is_found_for_end_and_those_that_are_roused_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aiozkqueue.queue.runtime.task_pool.RESTS", 0.1)
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


async def test_one_that_is_cancelled_while_it_rests_is_given_nothing() -> None:
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


async def test_what_nobody_has_begun_with_is_left_to_be_given_back_when_all_are_cancelled() -> None:
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


async def test_those_that_rest_go_when_it_is_closed_and_the_others_when_they_are_done() -> None:
    works = Works()
    works.give("1", "2")
    await settle()
    await works.end("1")
    assert works.task_pool.close() == []
    await settle()
    assert [task.done() for task in works.tasks] == [True, False]
    await works.end("2")
    assert works.tasks[1].done()


async def test_a_job_that_fails_ends_its_task_with_that_error_and_no_other() -> None:
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


async def test_a_cancellation_that_a_job_has_swallowed_is_not_the_next_ones() -> None:
    """Who asks whether somebody wants the end of his task is told of his own."""
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
