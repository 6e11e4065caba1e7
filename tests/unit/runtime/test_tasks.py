"""Several concurrent tasks, some of which fail."""

from __future__ import annotations

import asyncio
from contextvars import Context
from functools import partial

import pytest
import sniffio

from aiozkqueue.runtime.tasks import TaskOwner, run_limited

pytestmark = pytest.mark.timeout(30)


async def test_at_most_the_given_number_of_tasks_run_and_results_are_in_order() -> None:
    in_progress, most = 0, 0

    async def work(number: int) -> int:
        nonlocal in_progress, most
        in_progress += 1
        most = max(most, in_progress)
        await asyncio.sleep(0)
        in_progress -= 1
        return number

    assert await run_limited(3, [partial(work, number) for number in range(10)]) == list(range(10))
    assert most == 3


async def test_the_first_failure_is_raised_unchanged_and_ends_the_other_tasks() -> None:
    ended = False

    async def wait_for_ever() -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            ended = True

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("mine") from ValueError("why")

    with pytest.raises(KeyError, match="mine") as raised:
        await run_limited(2, [wait_for_ever, fail])
    assert isinstance(raised.value.__cause__, ValueError)
    assert ended


async def test_a_task_is_started_from_a_callback_of_the_loop() -> None:
    """Outside tasks, sniffio, which is installed here, does not know that asyncio runs."""
    owner, ran = TaskOwner("tasks"), asyncio.Event()

    async def run() -> None:
        assert sniffio.current_async_library() == "asyncio"
        ran.set()

    await owner.start()
    asyncio.get_running_loop().call_soon(partial(owner.spawn, run, name="one"), context=Context())
    await asyncio.wait_for(ran.wait(), 5)
    await owner.close()
    assert owner.failure is None
    assert sniffio.thread_local.name is None
