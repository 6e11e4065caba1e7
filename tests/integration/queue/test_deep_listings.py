"""With very many messages waiting, nothing that lists them keeps the loop from the handlers beside it."""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import aiozkqueue as zq

DEEP = 100_000
#: Seconds of CPU that the thread may use before the loop gets its next turn. CPU, not time: the machine has other work.
TURN = 0.05


class _Turns:
    """The longest turn of the loop, seconds of CPU."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self) -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest, last = max(self.longest, now - last), now


@asynccontextmanager
async def watched() -> AsyncIterator[_Turns]:
    gc.collect()
    gc.freeze()  # what the test run holds is not the library's
    turns = _Turns()
    watch = asyncio.create_task(turns.watch())
    await asyncio.sleep(0)
    try:
        yield turns
    finally:
        watch.cancel()
        gc.unfreeze()


@pytest.mark.slow
async def test_no_call_on_a_deep_queue_holds_up_the_loop(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    for _ in range(DEEP // 10_000):
        await jobs.put_many([b""] * 10_000)
    (first,) = await jobs.peek(1)

    async def take() -> None:
        async with session.begin() as tx:
            assert len(await tx.take_many(jobs, 10)) == 10
            await tx.rollback()

    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "peek": lambda: jobs.peek(10),
        "stats": jobs.stats,
        "state": lambda: jobs.state(first.id),
        "state of one that is gone": lambda: jobs.state("nobody"),
        "cancel": lambda: jobs.cancel(id="nobody"),
        "update": lambda: jobs.update(b"new", id="nobody"),
        "release_claims": jobs.release_claims,
        "clean": lambda: session.clean("jobs"),
        "diagnose": lambda: session.diagnose("jobs"),
        "take": take,
    }
    longest: dict[str, float] = {}
    for name, call in calls.items():
        async with watched() as turns:
            await call()
        longest[name] = turns.longest
    assert {name: took for name, took in longest.items() if took > TURN} == {}


@pytest.mark.slow
async def test_dead_letters_and_scheduled_messages_in_great_numbers_hold_up_nothing(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    letters = session.queue("letters")
    for _ in range(DEEP // 20_000):
        await jobs.put_many([b""] * 10_000, delay=3600)
        await letters.put_many([b""] * 10_000)

    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "peek": lambda: jobs.peek(10),
        "stats": jobs.stats,
        "dead letters": letters.dead_letters.peek,
    }
    longest: dict[str, float] = {}
    for name, call in calls.items():
        async with watched() as turns:
            await call()
        longest[name] = turns.longest
    assert {name: took for name, took in longest.items() if took > TURN} == {}


@pytest.mark.slow
async def test_to_put_very_many_at_once_holds_up_nothing(session: zq.QueueSession) -> None:
    async with watched() as turns:
        await session.queue("jobs").put_many([b"1"] * DEEP)
    assert turns.longest < TURN
