"""Listing very many messages does not block the event loop."""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

import aiozkqueue as zq
from aiozkqueue.layout import LockRecord, name_digest, names
from aiozkqueue.queue.candidates import filters, groups
from aiozkqueue.session.internals import core_of, state_of
from aiozkqueue.zookeeper import Create

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


DEEP = 100_000
#: The maximum seconds of CPU in one turn of the loop. It is CPU time, because the machine has other work.
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
    gc.freeze()  # so that collections do not visit the objects of the test run
    turns = _Turns()
    watch = asyncio.create_task(turns.watch())
    await asyncio.sleep(0)
    try:
        yield turns
    finally:
        watch.cancel()
        gc.unfreeze()


#: The messages of a queue whose listing has several parts, and the maximum number of names examined in one turn: one
#: part and a few candidates.
SEVERAL_PARTS, ONE_PART = 8_000, 1_400


@pytest.mark.parametrize("kind", ["groups", "ordered", "filters"])
async def test_a_take_examines_few_names_of_a_long_listing_in_one_turn_of_the_loop(
    session: zq.QueueSession, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(ordered=True if kind == "ordered" else None))
    if kind == "groups":
        await asyncio.gather(*(jobs.put(b"", group=str(number % 999)) for number in range(SEVERAL_PARTS)))
    else:
        tags = {"color": "red"} if kind == "filters" else None
        await jobs.put_many([b""] * SEVERAL_PARTS, tags=tags)
    examined = [0]

    def counted(examine: Callable[..., object], *arguments: object) -> object:
        examined[-1] += 1
        return examine(*arguments)

    monkeypatch.setattr(groups, "lock_id", partial(counted, groups.lock_id))
    monkeypatch.setattr(filters, "name_digest", partial(counted, name_digest))

    async def turn() -> None:
        while True:
            examined.append(0)
            await asyncio.sleep(0)

    turns = asyncio.create_task(turn())
    condition = zq.Filter("color", "eq", "red") if kind == "filters" else None
    async with session.transaction() as tx:
        assert await tx.take(jobs, timeout=60, filters=condition) is not None
        turns.cancel()
        await tx.rollback()
    assert sum(examined) >= SEVERAL_PARTS
    assert max(examined) <= ONE_PART


async def test_a_clean_up_examines_few_expired_names_in_one_turn_of_the_loop(
    session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = session.queue("jobs")
    await jobs.put_many([b""] * 9_500, ttl=0.001)
    await asyncio.sleep(0.1)
    examined = [0]
    parse = names.ItemName.parse

    def counted(text: str) -> names.ItemName | None:
        examined[-1] += 1
        return parse(text)

    monkeypatch.setattr(names.ItemName, "parse", counted)

    async def turn() -> None:
        while True:
            examined.append(0)
            await asyncio.sleep(0)

    turns = asyncio.create_task(turn())
    [cleaned] = await session.admin.clean("jobs")
    turns.cancel()
    assert cleaned.total >= 9_500
    assert max(examined) <= 5_500  # the names of one part of the listing


#: The messages of a queue, and the maximum number of objects that a garbage collection visits meanwhile. A collection
#: may start at any allocation, and visits a million objects in a twentieth of a second.
MANY, SEARCHED = 40_000, 25_000


@asynccontextmanager
async def searched() -> AsyncIterator[list[int]]:
    """Count repeatedly how many objects a garbage collection would visit."""
    gc.collect()
    gc.freeze()
    counts = [0]

    async def count() -> None:
        while True:
            objects = gc.get_objects()
            counts.append(
                sum(len(found) if type(found) in {list, set} else 1 for found in objects if found is not objects)
            )
            del objects
            await asyncio.sleep(0.02)

    counting = asyncio.create_task(count())
    try:
        yield counts
    finally:
        counting.cancel()
        gc.unfreeze()


@pytest.mark.slow
async def test_the_search_for_garbage_visits_few_names_of_a_long_listing(session: zq.QueueSession) -> None:
    jobs, target = session.queue("jobs"), session.queue("target")

    async def move() -> None:
        await session.admin.moves.start(jobs, target)
        while await jobs.size():  # noqa: ASYNC110 -- no event reports it
            await asyncio.sleep(0.1)

    await target.put(b"")
    for _ in range(MANY // 10_000):
        await jobs.put_many([b""] * 10_000)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "release_claims": jobs.admin.release_claims,
        "move": move,
        "purge": target.purge,
    }
    most: dict[str, int] = {}
    for name, call in calls.items():
        async with searched() as counts:
            await call()
        most[name] = max(counts)
    assert {name: count for name, count in most.items() if count > SEARCHED} == {}


async def test_the_search_for_garbage_visits_few_locks_and_few_findings_of_the_doctor(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(collapse=True))
    core, paths = core_of(session), state_of(jobs).paths
    for start in range(0, MANY, 2_000):
        ids = [f"Lost{number:014d}" for number in range(start, start + 2_000)]
        await core.zookeeper.multi(
            [Create(paths.lock(message_id), LockRecord(message_id, message_id[:8]).encode()) for message_id in ids]
        )
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "diagnose": lambda: session.admin.diagnose("jobs", budget=60),
        "stats": jobs.stats,
        "take": lambda: take_none(session, jobs),
        "release_claims": jobs.admin.release_claims,
    }
    most: dict[str, int] = {}
    for name, call in calls.items():
        async with searched() as counts:
            await call()
        most[name] = max(counts)
    assert {name: count for name, count in most.items() if count > SEARCHED} == {}


async def take_none(session: zq.QueueSession, queue: zq.Queue[bytes]) -> None:
    async with session.transaction() as tx:
        assert await tx.take(queue) is None


@pytest.mark.slow
async def test_no_call_on_a_deep_queue_blocks_the_loop(session: zq.QueueSession) -> None:
    jobs = session.queue("jobs")
    for _ in range(DEEP // 10_000):
        await jobs.put_many([b""] * 10_000)
    (first,) = await jobs.peek(1)

    async def take() -> None:
        async with session.transaction() as tx:
            assert len(await tx.take_many(jobs, 10)) == 10
            await tx.rollback()

    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "peek": lambda: jobs.peek(10),
        "stats": jobs.stats,
        "state": lambda: jobs.state(first.id),
        "state of one that is gone": lambda: jobs.state("nobody"),
        "cancel": lambda: jobs.cancel(id="nobody"),
        "update": lambda: jobs.update(b"new", id="nobody"),
        "release_claims": jobs.admin.release_claims,
        "clean": lambda: session.admin.clean("jobs"),
        "diagnose": lambda: session.admin.diagnose("jobs"),
        "take": take,
    }
    longest: dict[str, float] = {}
    for name, call in calls.items():
        async with watched() as turns:
            await call()
        longest[name] = turns.longest
    assert {name: took for name, took in longest.items() if took > TURN} == {}


@pytest.mark.slow
async def test_many_dead_letters_and_scheduled_messages_do_not_block_the_loop(session: zq.QueueSession) -> None:
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
async def test_consumers_of_many_scheduled_and_collapsing_messages_do_not_block_the_loop(
    session: zq.QueueSession,
) -> None:
    due = session.queue("due")
    newest = session.queue("newest")
    await newest.configure(zq.QueueConfig(collapse=True))
    for start in range(0, DEEP, 10_000):
        await due.put_many([b""] * 10_000, delay=1)
        await newest.put_many([b"%d" % number for number in range(start, start + 10_000)])
    await asyncio.sleep(1)
    longest: dict[str, float] = {}
    for queue in (due, newest):
        async with watched() as turns, session.transaction() as tx:
            assert len(await tx.take_many(queue, 10, timeout=60)) == 10
            await tx.rollback()
        longest[queue.name] = turns.longest
    assert {name: took for name, took in longest.items() if took > TURN} == {}


async def test_free_messages_are_found_in_an_hour_with_more_held_ones_than_a_consumer_remembers(
    session: zq.QueueSession, other: zq.QueueSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.queue.candidates.delay.NEAREST", 5)
    monkeypatch.setattr("aiozkqueue.queue.candidates.delay.MORE", 3)
    jobs = session.queue("jobs")
    await jobs.put_many([b"%d" % number for number in range(80)], delay=0.01)
    async with session.transaction() as tx:
        held = {delivery.body for delivery in await tx.take_many(jobs, 40, timeout=60)}
        free: set[bytes] = set()
        while len(free) < 80 - len(held):
            async with other.transaction() as more:
                taken = await more.take_many(other.queue("jobs"), 10, timeout=60)
                free |= {delivery.body for delivery in taken}
        assert len(held | free) == 80
        await tx.rollback()


@pytest.mark.slow
async def test_a_put_of_very_many_messages_does_not_block_the_loop(session: zq.QueueSession) -> None:
    async with watched() as turns:
        await session.queue("jobs").put_many([b"1"] * DEEP)
    assert turns.longest < TURN
