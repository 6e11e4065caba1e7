"""Bounded queues: a queue has a size, and a put to a full queue waits for capacity or raises `QueueFullError`."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

import pytest
from pydantic import BaseModel

import aiozkqueue as zq
from aiozkqueue.bus import Bus
from aiozkqueue.operations.alter import AlterationTarget, move
from aiozkqueue.queue.put.capacity import credits_of
from aiozkqueue.schedule import Jobs, Notifications, Scheduler
from aiozkqueue.session.internals import core_of
from tests.integration.queue.conftest import eventually, take_one

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozkqueue.testing import TestClock
    from tests.acceptance.conftest import OnClock
    from tests.integration.queue.conftest import Locks, Opener
    from tests.observer import Observer

pytestmark = pytest.mark.timeout(180)


class Event(BaseModel):
    text: str


async def bounded(session: zq.QueueSession, size: int, name: str = "jobs") -> zq.Queue[bytes]:
    queue = session.queue(name)
    await queue.configure(zq.QueueConfig(max_size=size))
    return queue


async def waiting(queue: zq.Queue[bytes], sessions: int = 1) -> None:
    """Wait until this many sessions wait for capacity."""

    async def known() -> bool:
        return (await queue.stats()).waiting_producers == sessions

    await eventually(known, 30)


@pytest.mark.parametrize("timeout", [0, 600, None])
async def test_a_put_to_a_full_queue_whose_unique_key_is_held_does_not_wait_for_capacity(
    session: zq.QueueSession, timeout: float | None
) -> None:
    jobs = await bounded(session, 40)
    ids = [await jobs.put(b"%d" % number, key=f"k{number}", unique=True) for number in range(40)]
    async with asyncio.timeout(60):
        with pytest.raises(zq.DuplicateKeyError):
            await jobs.put(b"again", key="k7", unique=True, timeout=timeout)
        assert await jobs.put(b"again", key="k7", unique="ignore", timeout=timeout) == ids[7]
        again = [b"a", b"b"]
        assert await jobs.put_many(again, key="k7", unique="ignore", timeout=timeout) == [ids[7]] * 2
        assert await jobs.put_many([b"%d" % number for number in range(40)], key="k9", unique="ignore") == [ids[9]] * 40
    with pytest.raises(zq.QueueFullError):
        await jobs.put(b"new", key="new", unique="ignore")
    with pytest.raises(zq.QueueFullError):
        await jobs.put(b"new", key="new", unique=True)
    assert (await jobs.stats()).waiting_producers == 0
    assert await jobs.size() == 40


@pytest.mark.parametrize("unique", [True, "ignore"])
async def test_a_put_to_a_full_queue_replaces_the_expired_message_of_its_unique_key(
    on_clock: OnClock,
    clock: TestClock,
    unique: bool | Literal["ignore"],  # noqa: FBT001 - a parameter of the test
) -> None:
    session = await on_clock()
    jobs = await bounded(session, 2)
    await jobs.put(b"old", key="k", unique=True, ttl=60)
    await jobs.put(b"other")
    clock.advance(61)
    new = await jobs.put(b"new", key="k", unique=unique)
    assert {message.id: message.body for message in await jobs.peek()}[new] == b"new"
    assert (await jobs.stats()).size == 2


@pytest.mark.parametrize("timeout", [600, None])
async def test_a_commit_to_a_full_queue_does_not_wait_for_puts_whose_unique_keys_are_held(
    session: zq.QueueSession, timeout: float | None
) -> None:
    jobs, source = await bounded(session, 2), session.queue("source")
    await jobs.put_many([b"1", b"2"])
    await take_one(session, "jobs")
    await jobs.put(b"holder", key="k", unique=True)
    await source.put_many([b"a", b"b"])
    async with asyncio.timeout(60):
        with pytest.raises(zq.DuplicateKeyError):
            async with session.transaction(commit_timeout=timeout) as tx:
                assert await tx.take(source, timeout=30) is not None
                tx.put(jobs, b"again", key="k", unique=True)
        assert await source.size() == 2
        async with session.transaction(commit_timeout=timeout) as tx:
            assert await tx.take(source, timeout=30) is not None
            for _ in range(3):  # more than the queue may ever hold
                tx.put(jobs, b"again", key="k", unique="ignore")
    assert (await source.size(), [message.body for message in await jobs.peek()]) == (1, [b"2", b"holder"])


async def test_a_commit_to_a_full_queue_replaces_the_expired_message_of_its_unique_key(
    on_clock: OnClock, clock: TestClock
) -> None:
    session = await on_clock()
    jobs = await bounded(session, 2)
    await jobs.put(b"old", key="k", unique=True, ttl=60)
    await jobs.put(b"other")
    clock.advance(61)
    async with asyncio.timeout(60), session.transaction() as tx:
        tx.put(jobs, b"new", key="k", unique=True)
    assert {message.body for message in await jobs.peek()} == {b"other", b"new"}


@pytest.mark.parametrize("how", ["take", "cancel"])
async def test_a_commit_that_waits_for_capacity_reuses_the_unique_key_of_a_message_that_it_ends(
    session: zq.QueueSession, other: zq.QueueSession, how: str
) -> None:
    jobs = await bounded(session, 2)
    held = await jobs.put(b"holder", key="k", unique=True)
    await jobs.put(b"other")

    async def replace() -> None:
        async with session.transaction() as tx:
            if how == "take":
                assert await tx.take(jobs, timeout=30) is not None
            else:
                assert await tx.cancel(jobs, id=held)
            tx.put(jobs, b"again", key="k", unique=True)
            tx.put(jobs, b"more")

    task = asyncio.create_task(replace())
    await waiting(other.queue("jobs"))
    if how == "cancel":
        assert await other.queue("jobs").cancel(id=(await jobs.peek())[1].id)
    else:
        await take_one(other, "jobs")
    await task
    assert [message.body for message in await jobs.peek()] == [b"again", b"more"]


async def test_a_full_queue_refuses_a_put_at_once_and_accepts_it_when_it_has_capacity(session: zq.QueueSession) -> None:
    jobs = await bounded(session, 40)
    for number in range(40):
        await jobs.put(b"%d" % number)
    with pytest.raises(zq.QueueFullError, match=r"'jobs' is full \(max_size 40\)"):
        await jobs.put(b"one too many")
    stats = await jobs.stats()
    assert (stats.size, stats.max_size, stats.remaining_capacity, stats.waiting_producers) == (40, 40, 0, 0)
    await take_one(session)
    await jobs.put(b"40")
    assert await jobs.size() == 40


async def test_a_put_waits_for_capacity_and_continues_when_a_message_is_consumed(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = await bounded(session, 2)
    await jobs.put_many([b"1", b"2"])
    put = asyncio.create_task(jobs.put(b"3", timeout=None))
    await waiting(other.queue("jobs"))
    assert not put.done()
    await take_one(other)
    await put
    assert [message.body for message in await jobs.peek()] == [b"2", b"3"]


async def test_a_put_that_finds_no_capacity_raises_after_its_timeout(session: zq.QueueSession) -> None:
    jobs = await bounded(session, 1)
    await jobs.put(b"1")
    began = time.monotonic()
    with pytest.raises(zq.QueueFullError, match=r"within 0\.5 s"):
        await jobs.put(b"2", timeout=0.5)
    assert time.monotonic() - began > 0.4
    with pytest.raises(zq.QueueFullError):
        await jobs.put_many([b"2", b"3"], timeout=0.2)
    assert [message.body for message in await jobs.peek()] == [b"1"]


async def test_the_error_after_a_wait_for_capacity_names_the_whole_timeout(on_clock: OnClock, clock: TestClock) -> None:
    """It does not name the time that was left after an earlier attempt, or after a part that was stored."""
    session = await on_clock()
    jobs = await bounded(session, 2)

    async def wait_in_vain(wait: Awaitable[object], match: str) -> None:
        waits = asyncio.ensure_future(wait)
        await waiting(jobs)
        clock.advance(600)
        with pytest.raises(zq.QueueFullError, match=match):
            await waits
        await waiting(jobs, 0)

    await jobs.put_many([b"1", b"2"])
    async with session.transaction() as tx:
        for message in await tx.take_many(jobs, 2, timeout=30):
            tx.reject(message, "bad")
    await jobs.put(b"3")
    await wait_in_vain(jobs.dead_letters.redrive(timeout=600), r"within 600 s;.*1 dead letters were redriven before")
    await wait_in_vain(jobs.put_many([b"4", b"5", b"6"], timeout=600), r"within 600 s")
    async with session.transaction(autocommit=False) as tx:
        tx.put(jobs, b"4")
        await wait_in_vain(tx.commit(timeout=600), r"within 600 s")


async def test_put_many_that_fits_only_in_part_raises_with_the_number_put(session: zq.QueueSession) -> None:
    jobs = await bounded(session, 3)
    with pytest.raises(zq.QueueFullError, match="the message was not stored") as refused:
        await jobs.put_many([b"1", b"2", b"3", b"4", b"5"])
    assert refused.value.__notes__ == ["the first 3 of 5 messages had been put before"]
    assert [message.body for message in await jobs.peek()] == [b"1", b"2", b"3"]


async def test_a_cancelled_wait_leaves_nothing_behind(session: zq.QueueSession) -> None:
    jobs = await bounded(session, 1)
    await jobs.put(b"1")
    cancelled = asyncio.create_task(jobs.put(b"2", timeout=None))
    await waiting(jobs)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await waiting(jobs, 0)
    assert [message.body for message in await jobs.peek()] == [b"1"]


async def test_closing_the_session_wakes_waiting_puts(
    session: zq.QueueSession, zookeeper: str, queue_root: str
) -> None:
    jobs = await bounded(session, 1)
    await jobs.put(b"1")
    async with zq.connect(zookeeper, root=queue_root) as closing:
        put = asyncio.create_task(closing.queue("jobs").put(b"2", timeout=None))
        await waiting(jobs)
    with pytest.raises(zq.SessionClosedError):
        await put
    await waiting(jobs, 0)


async def test_several_producers_exceed_the_size_by_no_more_than_a_block_each(open_session: Opener) -> None:
    size, producers = 200, 6
    sessions = [await open_session() for _ in range(producers)]
    await bounded(sessions[0], size)
    accepted = refused = 0

    async def produce(session: zq.QueueSession) -> None:
        nonlocal accepted, refused
        for _ in range(150):
            try:
                await session.queue("jobs").put(b"x")
            except zq.QueueFullError:
                refused += 1
                await asyncio.sleep(0)
            else:
                accepted += 1

    async with asyncio.TaskGroup() as group:
        for session in sessions:
            for _ in range(4):
                group.create_task(produce(session))
    assert refused
    assert size <= await sessions[0].queue("jobs").size() == accepted <= size + (producers - 1) * credits_of(size)


async def test_one_producer_never_exceeds_the_size_with_concurrent_puts(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = await bounded(session, 100)
    puts = [asyncio.create_task(jobs.put(b"x", timeout=30)) for _ in range(400)]
    most = taken = 0
    while taken < 400:
        most = max(most, await other.queue("jobs").size())
        async with other.transaction() as tx:
            taken += len(await tx.take_many(other.queue("jobs"), 20, timeout=30))
    await asyncio.gather(*puts)
    assert most <= 100


async def test_a_message_in_flight_counts_against_the_size_until_its_commit(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = await bounded(session, 3)
    await jobs.put_many([b"1", b"2", b"3"])
    async with other.transaction() as tx:
        assert len(await tx.take_many(other.queue("jobs"), 3)) == 3
        with pytest.raises(zq.QueueFullError):
            await jobs.put(b"4")
    await jobs.put(b"4")


async def test_a_transaction_waits_for_capacity_and_then_commits_as_a_whole(
    session: zq.QueueSession, other: zq.QueueSession, locks: Locks
) -> None:
    jobs = await bounded(session, 2, "results")
    await jobs.put_many([b"a", b"b"])
    await session.queue("jobs").put(b"1")

    async def transform() -> None:
        async with session.transaction() as tx:
            message = await tx.take(session.queue("jobs"))
            assert message is not None
            tx.put("results", b"r1")

    task = asyncio.create_task(transform())
    await waiting(other.queue("results"))
    assert len(await locks()) == 1
    await take_one(other, "results")
    await task
    assert [m.body for m in await jobs.peek()] == [b"b", b"r1"]
    assert await session.queue("jobs").size() == 0


async def test_a_commit_waits_for_capacity_up_to_its_timeout(session: zq.QueueSession) -> None:
    await (await bounded(session, 1, "results")).put(b"a")
    await session.queue("jobs").put(b"1")
    async with session.transaction(autocommit=False) as tx:
        await tx.take(session.queue("jobs"))
        tx.put("results", b"r1")
        with pytest.raises(zq.QueueFullError):
            await tx.commit(timeout=0.3)
        assert tx.outcome is zq.Outcome.ROLLED_BACK
    assert await session.queue("jobs").size() == 1
    assert await session.queue("results").size() == 1


async def test_a_rollback_ends_the_wait_of_a_commit_for_capacity(
    session: zq.QueueSession, other: zq.QueueSession, locks: Locks
) -> None:
    results, jobs = await bounded(session, 1, "results"), session.queue("jobs")
    await results.put(b"a")
    await jobs.put(b"1")
    async with session.transaction(autocommit=False) as tx:
        await tx.take(jobs)
        tx.put(results, b"r1")
        commit = asyncio.create_task(tx.commit())
        await waiting(other.queue("results"))
        await asyncio.gather(tx.rollback(delay=0), tx.rollback(delay=0))
        assert tx.outcome is zq.Outcome.ROLLED_BACK
        assert await locks() == []
        with pytest.raises(zq.NotCommittedError, match="rolled back while its commit waited"):
            await commit
        await tx.rollback()
    assert await session.outcome(tx.id) is zq.Outcome.ROLLED_BACK
    assert (await take_one(other, "jobs")).body == b"1"
    await take_one(other, "results")
    await results.put(b"b")
    await waiting(other.queue("results"), 0)


async def test_a_handler_can_roll_back_a_commit_of_its_delivery_that_waits_for_capacity(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    results, jobs = await bounded(session, 1, "results"), session.queue("jobs")
    await results.put(b"a")
    await jobs.put(b"1")
    errors: list[BaseException | None] = []

    async def handle(delivery: zq.Delivery[bytes]) -> None:
        if delivery.attempt > 1:
            return
        delivery.put(results, b"r1")
        commit = asyncio.create_task(delivery.commit())
        await waiting(other.queue("results"))
        await delivery.rollback(delay=0)
        errors.extend(await asyncio.gather(commit, return_exceptions=True))

    async with session.listener(jobs, handle):
        await eventually(lambda: _is_empty(jobs), 30)
    assert [type(error) for error in errors] == [zq.NotCommittedError]
    assert [message.body for message in await results.peek()] == [b"a"]


async def _is_empty(queue: zq.Queue[bytes]) -> bool:
    return await queue.size() == 0


async def test_a_long_wait_for_capacity_is_logged(
    session: zq.QueueSession, other: zq.QueueSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozkqueue.queue.put.capacity.LONG_WAIT", 0.2)
    await (await bounded(session, 1, "results")).put(b"a")

    async def produce() -> None:
        async with session.transaction() as tx:
            tx.put("results", b"b")

    async def reported() -> bool:
        return "queue results is full (max_size 1): a put has waited for capacity for 0.2 s" in caplog.messages

    task = asyncio.create_task(produce())
    await eventually(reported)
    await take_one(other, "results")
    await task


async def test_a_delivery_whose_result_does_not_fit_waits_and_uses_no_attempt(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    results = await bounded(session, 1, "results")
    jobs = session.queue("jobs", policy=zq.ConsumeTimes(2, backoff=zq.Fixed(0)))
    await results.put(b"0")
    await jobs.put_many([b"1", b"2", b"3"])
    handled: list[tuple[bytes, int]] = []

    async def handle(delivery: zq.Delivery[bytes]) -> None:
        handled.append((delivery.body, delivery.attempt))
        delivery.put(results, delivery.body)

    async with session.listener(jobs, handle, concurrency=3):
        await waiting(other.queue("results"))
        await asyncio.sleep(0.5)
        bodies = [(await take_one(other, "results", 30)).body for _ in range(4)]
    assert sorted(bodies) == [b"0", b"1", b"2", b"3"]
    assert sorted(handled) == [(b"1", 1), (b"2", 1), (b"3", 1)]
    assert await jobs.size() == 0


async def test_a_loop_whose_results_do_not_fit_waits_in_its_settle_and_can_be_cancelled(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    results = await bounded(session, 2, "results")
    await session.queue("jobs").put_many([b"%d" % number for number in range(6)])

    async def loop() -> None:
        async with session.queue("jobs").consume() as deliveries:
            async for delivery in deliveries:
                delivery.put(results, delivery.body)

    task = asyncio.create_task(loop())
    await waiting(other.queue("results"))
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert await results.size() == 2
    assert await session.queue("jobs").size() == 4
    assert await session.queue("jobs").claimed() == 0


async def test_a_consumer_that_puts_back_to_its_own_full_queue_never_waits_for_itself(session: zq.QueueSession) -> None:
    jobs = await bounded(session, 5)
    await jobs.put_many([b"0"] * 5)
    rounds = 0
    async with jobs.consume() as deliveries:
        async for delivery in deliveries:
            rounds += 1
            if rounds > 50:
                break
            delivery.put(jobs, b"%d" % rounds)
    assert rounds == 51
    assert await jobs.size() == 5


async def test_waiting_puts_of_a_full_queue_do_not_delay_puts_to_other_queues(session: zq.QueueSession) -> None:
    full = await bounded(session, 1, "full")
    await full.put(b"1")
    waits = [asyncio.create_task(full.put(b"x", timeout=None)) for _ in range(20)]
    await waiting(full)
    async with asyncio.timeout(60):
        await asyncio.gather(*(session.queue("free").put(b"x") for _ in range(200)))
    assert not any(wait.done() for wait in waits)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    assert await full.size() == 1


async def test_a_size_changed_while_in_use_applies_from_the_next_put(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs, other_jobs = session.queue("jobs"), other.queue("jobs")
    await other_jobs.put_many([b"x"] * 10)
    await jobs.configure(zq.QueueConfig(max_size=10))
    with pytest.raises(zq.QueueFullError):
        await other_jobs.put(b"y")
    waits = asyncio.create_task(other_jobs.put(b"y", timeout=None))
    await waiting(jobs)
    await jobs.configure(zq.QueueConfig(max_size=11))
    await waits
    await take_one(session)
    await jobs.configure(zq.QueueConfig(max_size=12))
    await other_jobs.put_many([b"z"] * 2)
    await jobs.configure(zq.QueueConfig(max_size=0))
    await other_jobs.put_many([b"z"] * 20)
    assert await jobs.size() == 32
    await jobs.configure(zq.QueueConfig(max_size=5))
    with pytest.raises(zq.QueueFullError):
        await other_jobs.put(b"late", timeout=0.5)
    with pytest.raises(zq.QueueFullError):
        async with other.transaction() as tx:
            tx.put("jobs", b"late")
            await tx.commit(timeout=0.5)


@pytest.mark.parametrize("takes", [False, True])
async def test_a_commit_waits_for_capacity_in_a_queue_that_became_bounded_meanwhile(
    session: zq.QueueSession, other: zq.QueueSession, *, takes: bool
) -> None:
    jobs = session.queue("jobs")
    await other.queue("jobs").put_many([b"1", b"2"])
    await other.queue("orders").put(b"order")
    await jobs.configure(zq.QueueConfig(max_size=2))

    async def commits() -> None:
        async with other.transaction() as tx:  # has not read the new size: its commit is sent, and refused
            if takes:
                assert await tx.take(other.queue("orders")) is not None
            tx.put("jobs", b"3")

    task = asyncio.create_task(commits())
    await waiting(jobs)
    assert not task.done()
    await take_one(session)
    await task
    assert [message.body for message in await jobs.peek()] == [b"2", b"3"]


@pytest.mark.parametrize("messages", [[b"3"], [b"3", b"4", b"5"]])
async def test_a_put_waits_for_capacity_in_a_queue_that_became_bounded_meanwhile(
    session: zq.QueueSession, other: zq.QueueSession, messages: list[bytes]
) -> None:
    jobs, other_jobs = session.queue("jobs"), other.queue("jobs")
    await other_jobs.put_many([b"1", b"2"])
    await jobs.configure(zq.QueueConfig(max_size=2))
    # The other session has not read the new size: its request is sent, and refused.
    if len(messages) == 1:
        task: asyncio.Task[object] = asyncio.create_task(other_jobs.put(messages[0], timeout=None))
    else:
        task = asyncio.create_task(other_jobs.put_many(messages, timeout=None))
    await waiting(jobs)
    for _ in messages:
        await take_one(session)
    await task
    assert [message.body for message in await jobs.peek()] == [b"1", b"2", *messages][-2:]


async def test_put_many_fills_a_queue_that_became_bounded_meanwhile(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    await other.queue("jobs").put(b"1")
    jobs = await bounded(session, 2)
    with pytest.raises(zq.QueueFullError) as raised:
        await other.queue("jobs").put_many([b"2", b"3", b"4"])
    assert raised.value.__notes__ == ["the first 1 of 3 messages had been put before"]
    assert [message.body for message in await jobs.peek()] == [b"1", b"2"]


async def test_a_refused_commit_gives_its_capacity_back_once(session: zq.QueueSession) -> None:
    small, jobs = await bounded(session, 2, "small"), session.queue("jobs")
    await small.put(b"1")
    await jobs.put(b"job")
    with pytest.raises(zq.ClaimLostError):
        async with session.transaction() as tx:
            assert await tx.take(jobs, timeout=30) is not None
            tx.put(small, b"never")
            await jobs.admin.release_claims()
    await small.put(b"2", timeout=30)
    with pytest.raises(zq.QueueFullError):
        await small.put(b"one too many")


async def test_a_commit_that_is_refused_by_one_queue_uses_no_capacity_of_another(session: zq.QueueSession) -> None:
    first, second = await bounded(session, 1, "a"), await bounded(session, 2, "b")
    with pytest.raises(zq.TransactionTooLargeError, match="'b' holds at most 2"):
        async with session.transaction() as tx:
            tx.put(first, b"never")
            for _ in range(3):
                tx.put(second, b"never")
    await first.put(b"1", timeout=30)


async def test_a_transaction_that_never_fits_is_refused_at_once(session: zq.QueueSession) -> None:
    await bounded(session, 3)
    with pytest.raises(zq.TransactionTooLargeError, match="holds at most 3 messages"):
        async with session.transaction() as tx:
            for _ in range(4):
                tx.put("jobs", b"x")
    assert await session.queue("jobs").size() == 0


@pytest.mark.parametrize("puts", [1, 2])
async def test_a_transaction_whose_own_messages_leave_no_capacity_is_refused_at_once(
    session: zq.QueueSession, puts: int
) -> None:
    """Otherwise it would wait forever for its own messages, and all other puts would wait for it."""
    jobs = await bounded(session, 1)
    await jobs.put(b"0")
    with pytest.raises(zq.TransactionTooLargeError, match="would leave 2 of its own there"):
        async with session.transaction() as tx:
            message = await tx.take(jobs)
            assert message is not None
            if puts == 1:
                tx.release(message)
            for _ in range(puts):
                tx.put(jobs, b"x")
    assert [message.body for message in await jobs.peek()] == [b"0"]


async def test_a_transaction_overtakes_a_waiting_one_that_needs_the_end_of_its_message(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    jobs = await bounded(session, 3)
    await jobs.put(b"0")
    async with session.transaction() as tx:
        assert await tx.take(jobs) is not None

        async def put_three() -> None:
            async with session.transaction() as large:
                for _ in range(3):
                    large.put(jobs, b"large")

        task = asyncio.create_task(put_three())
        await waiting(other.queue("jobs"))
        for _ in range(2):
            tx.put(jobs, b"small")
    assert [message.body for message in await jobs.peek()] == [b"small"] * 2
    await take_one(other, "jobs")
    await take_one(other, "jobs")
    await task
    assert [message.body for message in await jobs.peek()] == [b"large"] * 3


async def test_a_wait_for_capacity_continues_after_its_zookeeper_session_ended(
    session: zq.QueueSession, other: zq.QueueSession, expire: Callable[[zq.QueueSession], Awaitable[None]]
) -> None:
    jobs = await bounded(session, 1)
    await jobs.put(b"1")
    put = asyncio.create_task(jobs.put(b"2", timeout=None))
    await waiting(other.queue("jobs"))
    await expire(session)
    await take_one(other)
    await put
    assert [m.body for m in await other.queue("jobs").peek()] == [b"2"]


async def test_a_transaction_that_waits_for_capacity_raises_when_its_session_ends(
    session: zq.QueueSession, other: zq.QueueSession, expire: Callable[[zq.QueueSession], Awaitable[None]]
) -> None:
    await (await bounded(session, 1, "results")).put(b"a")
    await session.queue("jobs").put(b"1")

    async def transform() -> None:
        async with session.transaction() as tx:
            await tx.take(session.queue("jobs"))
            tx.put("results", b"r1")

    task = asyncio.create_task(transform())
    await waiting(other.queue("results"))
    await expire(session)
    with pytest.raises(zq.SessionExpiredError):
        await task
    assert (await take_one(other, "jobs", 30)).body == b"1"


async def test_the_size_counts_all_lanes_and_the_messages_of_other_programs(
    session: zq.QueueSession, server_view: Observer, queue_root: str
) -> None:
    jobs = session.queue("jobs")
    await jobs.configure(zq.QueueConfig(max_size=8, shards=4))
    await jobs.put_many([b"x"] * 6)
    await jobs.put(b"urgent", priority=-5)
    await server_view.create(f"{queue_root}/jobs/items/item-0000000777", b"foreign")
    with pytest.raises(zq.QueueFullError):
        await jobs.put(b"y")
    put = asyncio.create_task(jobs.put(b"y", timeout=None))
    await waiting(jobs)
    await server_view.delete(f"{queue_root}/jobs/items/item-0000000777")
    await put
    assert await jobs.size() == 8


async def test_dead_letters_are_redriven_up_to_the_capacity_of_the_queue(session: zq.QueueSession) -> None:
    jobs = await bounded(session, 2)
    await jobs.put_many([b"1", b"2"])
    async with session.transaction() as tx:
        for message in await tx.take_many(jobs, 2, timeout=30):
            tx.reject(message, "bad")
    await jobs.put(b"3")
    with pytest.raises(zq.QueueFullError, match="1 dead letters were redriven before"):
        await jobs.dead_letters.redrive()
    assert (await jobs.size(), await jobs.dead_letters.size()) == (2, 1)
    waits = asyncio.create_task(jobs.dead_letters.redrive(timeout=None))
    await waiting(jobs)
    await take_one(session, timeout=30)
    assert await waits == 1
    assert await jobs.dead_letters.size() == 0


@pytest.mark.parametrize("timeout", [0, 600, None])
async def test_a_redrive_into_a_full_queue_leaves_messages_whose_unique_keys_are_held(
    session: zq.QueueSession, timeout: float | None
) -> None:
    jobs = await bounded(session, 2)
    await jobs.put(b"1", key="k", unique=True)
    async with session.transaction() as tx:
        message = await tx.take(jobs, timeout=30)
        assert message is not None
        tx.reject(message, "bad")
    await jobs.put(b"2", key="k", unique=True)
    await jobs.put(b"3")
    async with asyncio.timeout(60):
        assert await jobs.dead_letters.redrive(timeout=timeout) == 0
    assert (await jobs.size(), await jobs.dead_letters.size()) == (2, 1)


async def test_a_move_into_a_full_queue_of_a_message_whose_unique_key_is_held_fails_without_a_wait(
    session: zq.QueueSession,
) -> None:
    await (await bounded(session, 1)).put(b"1", key="k", unique=True)
    source = session.queue("source")
    moved = await source.put(b"2", key="k", unique=True)
    with pytest.raises(zq.DuplicateKeyError):
        await move(core_of(session), AlterationTarget(source, moved, None), "jobs")
    reference = await session.admin.moves.start("source", "jobs")
    async with asyncio.timeout(60):
        while (await session.admin.moves.status(reference)).state != "failed":  # noqa: ASYNC110 -- no event reports it
            await asyncio.sleep(0.05)
    assert (await source.size(), await session.queue("jobs").size()) == (1, 1)


async def test_messages_of_a_move_stay_in_the_source_until_the_target_has_capacity(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    narrow = await bounded(session, 2, "narrow")
    await session.queue("jobs").put_many([b"%d" % number for number in range(5)])
    reference = await session.admin.moves.start("jobs", "narrow")
    for left in (3, 2, 1, 0):

        async def moved(left: int = left) -> bool:
            sizes = await narrow.size(), await session.queue("jobs").size()
            assert sizes[0] <= 2
            return sizes == (2, left)

        await eventually(moved, 30)
        if left:
            await waiting(narrow)
        await take_one(other, "narrow", 30)

    async def done() -> bool:
        return (await session.admin.moves.status(reference)).state == "done"

    await eventually(done, 30)
    assert (await session.admin.moves.status(reference)).moved == 5


async def test_an_event_goes_to_all_queues_of_a_bus_or_to_none_when_one_is_full(session: zq.QueueSession) -> None:
    bus = Bus(session, "events", Event)
    await bus.join("audit")
    await bus.queue("audit").configure(zq.QueueConfig(max_size=1))
    await bus.post(Event(text="1"))
    with pytest.raises(zq.QueueFullError, match="events@audit"):
        await bus.post(Event(text="2"))
    assert await bus.queue().size() == 1
    waits = asyncio.create_task(bus.post(Event(text="2"), timeout=None))
    await waiting(bus.queue("audit"))
    await take_one(session, "events@audit", 30)
    await waits
    assert (await bus.queue().size(), await bus.queue("audit").size()) == (2, 1)


async def test_a_post_waits_for_capacity_in_a_queue_that_became_bounded_meanwhile(
    session: zq.QueueSession, other: zq.QueueSession
) -> None:
    bus = Bus(session, "events", Event)
    await bus.post(Event(text="1"))
    await bounded(other, 1, "events")
    waits = asyncio.create_task(bus.post(Event(text="2"), timeout=None))
    await waiting(other.queue("events"))
    await take_one(other, "events", 30)
    await waits
    assert await bus.queue().size() == 1


async def test_a_scheduler_retries_an_occurrence_until_the_queue_has_capacity(
    session: zq.QueueSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("aiozkqueue.schedule.scheduler.AGAIN", 0.1)
    jobs = await bounded(session, 1)
    await jobs.put(b"in the way")
    await Jobs(session).add("tick", "* * * * * *", jobs, b"tick")
    async with Scheduler(session):

        async def refused() -> bool:
            return "job tick: the message due at" in caplog.text

        await eventually(refused, 30)
        assert [message.body for message in await jobs.peek()] == [b"in the way"]
        for body in (b"in the way", b"tick"):
            async with session.transaction() as tx:
                message = await tx.take(jobs, timeout=30)
                assert message is not None
                assert message.body == body


async def test_an_occurrence_whose_unique_key_is_held_is_left_out_of_a_full_queue(
    session: zq.QueueSession, caplog: pytest.LogCaptureFixture
) -> None:
    queue, jobs = await bounded(session, 1), Jobs(session)
    await jobs.add("tick", "* * * * * *", queue, b"tick", unique="ignore")
    async with Scheduler(session):

        async def decided() -> bool:
            put_at = (await queue.peek())[0].enqueued_at
            return (await jobs.get("tick")).decided > put_at + timedelta(seconds=2)

        async with asyncio.timeout(30):
            while not await queue.size():  # noqa: ASYNC110 -- no event reports it
                await asyncio.sleep(0.05)
        await eventually(decided, 30)
    assert await queue.size() == 1
    assert "was not put" not in caplog.text


@pytest.mark.parametrize("timeout", [0, 600, None])
async def test_a_post_with_unique_keys_that_are_held_needs_no_capacity(
    session: zq.QueueSession, timeout: float | None
) -> None:
    bus = Bus(session, "events", Event)
    await bus.join("audit")
    await bounded(session, 1, "events@audit")
    ids = await bus.post(Event(text="1"), key="k", unique=True)
    async with asyncio.timeout(60):
        assert await bus.post(Event(text="1"), key="k", unique="ignore", timeout=timeout) == ids
        with pytest.raises(zq.DuplicateKeyError):
            await bus.post(Event(text="1"), key="k", unique=True, timeout=timeout)
    with pytest.raises(zq.QueueFullError):
        await bus.post(Event(text="2"), key="k2", unique="ignore")
    assert (await bus.queue().size(), await bus.queue("audit").size()) == (1, 1)


async def test_a_notification_is_refused_when_its_queue_is_full(session: zq.QueueSession) -> None:
    reminders = await Notifications(session).create("billing", "reminders", bytes)
    await reminders.queue.configure(zq.QueueConfig(max_size=1))
    await reminders.schedule(b"1", datetime(2999, 1, 1, tzinfo=UTC))
    with pytest.raises(zq.QueueFullError):
        await reminders.schedule(b"2", datetime(2999, 1, 1, tzinfo=UTC))
    assert len(await reminders.find()) == 1
