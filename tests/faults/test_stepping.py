"""The test tool `stepping` reports correctly that an operation ended before its task group cancelled it."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.stepping import How, Moment, Suspensions, run_cancelled


@pytest.mark.parametrize(("turns", "returned"), [(0, True), (1, True), (2, False), (3, False)])
async def test_a_task_that_ends_before_its_group_cancels_it_has_returned(*, turns: int, returned: bool) -> None:
    """A sibling fails in one turn of the loop, and its group cancels the others in the next.

    An operation that ends between these turns has returned, although asyncio's group raises.
    """
    suspensions = Suspensions()
    suspensions.install()
    loop = asyncio.get_running_loop()
    ended = False

    async def operate() -> None:
        nonlocal ended
        answer: asyncio.Future[None] = loop.create_future()
        loop.call_soon(answer.set_result, None)
        await answer  # the cancellation happens here, when the answer has arrived
        for _ in range(turns):
            await asyncio.sleep(0)
        ended = True

    outcome = await run_cancelled(suspensions, 1, Moment.ANSWERED, How.BY_GROUP, operate, everywhere=False)
    assert outcome == (True, returned)
    assert ended is returned
